"""What parity, tuner and benchmark need to know of the choice of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from kernels.accept import reference
from kernels.accept.types import WORDS_PER_ROW, Accepted, Draws, rows_up_to
from kernels.op import Cost, Inputs, Shape, Variant
from kernels.tuner import variant_for

MOST_PER_THREAD = 32
"""Tokens of a thread, each with its best two and a place."""

PROGRAMS = 2048
"""Parts of all rows together that keep a card of some hundred processors busy."""

LEAST_SHARE = 1e-5
"""A random number draws a token at least so likely: rounding moves no border by so much."""


class Accept:
    """The `Op`. A shape: num_rows, vocab_size, num_seqs, and `draws`, 1 where tokens are drawn."""

    name = "accept"

    parity_shapes: Sequence[Shape] = (
        {"num_rows": 1, "vocab_size": 1, "num_seqs": 1, "draws": 0},
        {"num_rows": 9, "vocab_size": 1023, "num_seqs": 3, "draws": 0},
        {"num_rows": 3, "vocab_size": 5000, "num_seqs": 1, "draws": 1},
        {"num_rows": 2, "vocab_size": 2048, "num_seqs": 2, "draws": 1},
    )
    timed_shapes: Sequence[Shape] = (
        *({"num_rows": each, "vocab_size": 151936, "num_seqs": 1, "draws": 0} for each in (1, 16, 64, 256, 1024)),
        {"num_rows": 32, "vocab_size": 151936, "num_seqs": 32, "draws": 0},
        *({"num_rows": each, "vocab_size": 151936, "num_seqs": 1, "draws": 1} for each in (1, 64)),
    )
    space: Mapping[str, Sequence[int]] = {
        "PARTS": (1, 2, 4, 8, 16, 32, 64, 128),
        "BLOCK": (512, 1024, 2048, 4096),
        "num_warps": (1, 2, 4, 8),
        "LOADS_AHEAD": (1, 2, 4),
        "num_stages": (1,),
    }

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """A token for each thread and not more than registers hold, and parts that fill half a block."""
        num_threads, block = 32 * variant["num_warps"], variant["BLOCK"]
        is_filled = variant["PARTS"] == 1 or variant["PARTS"] * block <= 2 * shape["vocab_size"]
        return is_filled and num_threads <= block <= MOST_PER_THREAD * num_threads

    def default(self, shape: Shape) -> Variant:
        """One 16-byte load of bfloat16 a thread and turn; as many parts as rows leave processors idle."""
        block = 1024
        most = min(128, shape["vocab_size"] // block, PROGRAMS // rows_up_to(shape["num_rows"]))
        parts = 1 << max(most, 1).bit_length() - 1
        return {"PARTS": parts, "BLOCK": block, "LOADS_AHEAD": 1, "num_warps": 4, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """The vocabulary, and the number of rows up to its next power of 4."""
        return f"vocab_size={shape['vocab_size']} rows<={rows_up_to(shape['num_rows'])}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Rows with NaN between them, some with equal ones at the top, and drafts of which most tokens are right."""
        num_rows, vocab_size, num_seqs = shape["num_rows"], shape["vocab_size"], shape["num_seqs"]

        def draw(*sizes: int) -> Tensor:
            return torch.rand(*sizes, device=device, generator=generator)

        wide = torch.full((num_rows, vocab_size + 16), torch.nan, dtype=dtype, device=device)
        noise = torch.randn(num_rows, vocab_size, device=device, generator=generator) * 4
        logits = wide[:, :vocab_size].copy_(noise.to(dtype))
        twins = (draw(num_rows) * vocab_size).long()
        tied = draw(num_rows) < 0.5
        logits[tied, twins[tied]] = logits[tied].amax(dim=-1)
        starts = torch.linspace(0, num_rows, num_seqs + 1, device=device).round().to(torch.int32)
        draws = None
        if shape["draws"]:
            temperatures = torch.where(draw(num_rows) < 0.25, 0.0, 0.5 + draw(num_rows))
            draws = Draws(temperatures, _numbers(logits, temperatures, draw(num_rows)))
        draft = torch.full((num_rows,), -1, dtype=torch.int64, device=device)
        chosen = reference.accept(logits.double(), draft, starts, draws)[0]
        draft.copy_(torch.where(draw(num_rows) < 0.8, chosen, (chosen + 1) % vocab_size))
        draft[starts[1:].long() - 1] = -1
        return {"logits": logits, "draft": draft, "row_starts": starts, "draws": draws}

    def accepted(self, inputs: Inputs, variant: Variant | None = None) -> Accepted:
        """The kernels' result; without `draft` and `row_starts` nothing is counted."""
        from kernels.accept.kernel import launch

        logits, row_starts, draws = inputs["logits"], inputs["row_starts"], inputs["draws"]
        if variant is None:
            num_seqs = 0 if row_starts is None else len(row_starts) - 1
            rows, vocab = logits.shape
            shape = {"num_rows": rows, "vocab_size": vocab, "num_seqs": num_seqs, "draws": int(draws is not None)}
            variant = variant_for(self, shape, logits.device, logits.dtype)
        return launch(**inputs, variant=variant)

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """The kernels."""
        return self.accepted(inputs, variant).columns()

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Plain torch."""
        return reference.accept(**inputs)

    def torch_ways(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """The likeliest and the runner-up by two passes, and compiled; sequences that begin at known rows."""
        if inputs["draws"] is not None:
            return {}
        logits, draft, starts = inputs["logits"], inputs["draft"], inputs["row_starts"].long()
        places = torch.arange(len(logits), device=logits.device)
        sequence = torch.searchsorted(starts, places, right=True) - 1

        def eager() -> tuple[Tensor, ...]:
            largest, likeliest = logits.max(dim=-1)
            second = logits.scatter(1, likeliest[:, None], -torch.inf).amax(dim=-1)
            departs = torch.where((likeliest == draft) & largest.isfinite(), len(logits), places)
            ends = starts[1:].scatter_reduce(0, sequence, departs, "amin")
            return likeliest, likeliest, largest.float(), second.float(), ends - starts[:-1]

        return {"eager": eager, "compile": torch.compile(eager)}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Logits and drafts in, what was chosen out; a comparison a logit. A draw adds three operations a logit."""
        num_rows, num_logits = shape["num_rows"], shape["num_rows"] * shape["vocab_size"]
        drafts = num_rows * torch.int64.itemsize + (shape["num_seqs"] + 1) * torch.int32.itemsize
        drawn_with = num_rows * (torch.float32.itemsize + torch.float64.itemsize) if shape["draws"] else 0
        words = WORDS_PER_ROW * num_rows + shape["num_seqs"]
        num_bytes = num_logits * dtype.itemsize + drafts + drawn_with + words * torch.int32.itemsize
        return Cost(num_bytes, num_logits * (4 if shape["draws"] else 1))


def _numbers(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> Tensor:
    """For each row a number that draws a token as `uniform` would, from the middle of what is the token's.

    float64 [num_rows]. Where the token is hardly ever drawn, its borders are a matter of rounding: the likeliest is
    drawn then.
    """
    scores = logits.double() / temperatures.clamp(min=LEAST_SHARE)[:, None]
    shares = scores.softmax(dim=-1)
    ends = shares.cumsum(dim=-1)
    places = torch.searchsorted(ends, uniform[:, None].double() * ends[:, -1:], right=True)
    places = places.clamp(max=logits.shape[1] - 1)
    places = torch.where(shares.gather(1, places) < LEAST_SHARE, shares.argmax(dim=-1, keepdim=True), places)
    return ((ends.gather(1, places) - shares.gather(1, places) / 2) / ends[:, -1:])[:, 0]


OP = Accept()
