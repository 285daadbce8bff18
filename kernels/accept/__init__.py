"""Chooses the token of each row, greedily or by sampling, and counts how many draft tokens are accepted.

On a CPU: positive bfloat16 numbers are ordered as their bits read as integers, and numpy finds the largest of 32
integers with one instruction. 64 rows of 16,384 take 0.05 ms; a conversion to float32 takes 0.45 ms, torch.max 1.0 ms
and torch.argmax 7 ms.

The logits of 64 rows over a vocabulary of 151,936 are 19 MB of bfloat16 in fresh memory for every block: 4,700 page
faults and a round trip to main memory. A tile of 32,768 columns is 4 MB that torch's allocator reuses and that is still
in the cache when its maximum is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.accept.types import (
    MIN_TEMPERATURE,
    WORDS_PER_ROW,
    AcceptOutput,
    Draws,
    TopTokens,
    count_accepted,
    round_up_rows,
)
from kernels.op import Cost, Inputs, Shape, Variant, runs_triton
from kernels.winners import get_variant

__all__ = [
    "TILE",
    "AcceptOutput",
    "Draws",
    "TopTokens",
    "accept",
    "count_accepted",
    "find_top_tokens",
    "find_top_tokens_by_tile",
]


def accept(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None = None) -> AcceptOutput:
    """Choose a token for each row and count how many draft tokens each sequence accepts.

    logits: [num_rows, vocab_size] in any floating-point dtype. draft: int64 [num_rows], the draft token that follows
    each row, or -1. row_starts: int32 [num_seqs + 1]; sequence i has the rows [row_starts[i], row_starts[i + 1]). All
    tensors are on one device. The result stays there until `to_host` is called. Results of rows that belong to no
    sequence are undefined.

    The chosen token is the one with the largest logit (the first of equals), or the one sampled by `draws`. A sequence
    accepts draft tokens up to the first row whose chosen token differs from the draft's, or whose largest logit is not
    finite.
    """
    _check(logits, draft, row_starts, draws)
    if runs_triton(logits):
        return OP.run_kernels({"logits": logits, "draft": draft, "row_starts": row_starts, "draws": draws})
    token_ids, likeliest, largest, second, counts = naive_accept(logits, draft, row_starts, draws)
    numbers = torch.cat((largest, second)).to(torch.float32).view(torch.int32)
    return AcceptOutput(torch.cat((token_ids.int(), likeliest.int(), numbers, counts.int())), len(logits))


def _check(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0 or logits.stride(1) != 1:
        raise ValueError(f"logits must be [num_rows, vocab_size] with contiguous rows, not {list(logits.shape)}")
    num_rows = len(logits)
    if draft.shape != (num_rows,) or row_starts.dim() != 1 or len(row_starts) == 0:
        raise ValueError(f"{num_rows} rows do not fit draft {list(draft.shape)}, row_starts {list(row_starts.shape)}")
    if draws is not None and not draws.temperatures.shape == draws.numbers.shape == (num_rows,):
        raise ValueError(f"temperatures {list(draws.temperatures.shape)} do not fit {num_rows} rows")


def naive_accept(logits: Tensor, draft: Tensor, row_starts: Tensor, draws: Draws | None) -> tuple[Tensor, ...]:
    """Compute what `kernels.accept.accept` does, with plain torch operations.

    Returns the chosen token, the top token, its logit and the second largest logit of each row, [num_rows] each, and
    the number of draft tokens that each sequence accepts, [num_seqs].
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest, likeliest = wide.max(dim=-1)  # the first of equals, or NaN
    second = wide.scatter(1, likeliest[:, None], -torch.inf).amax(dim=-1)
    token_ids = likeliest if draws is None else naive_sample(wide, largest, likeliest, draws)
    confirms = ((token_ids == draft) & largest.isfinite()).tolist()
    counts = [[*confirms[first:last], False].index(False) for first, last in pairwise(row_starts.tolist())]
    return token_ids, likeliest, largest, second, torch.tensor(counts, dtype=torch.int64, device=logits.device)


def naive_sample(logits: Tensor, largest: Tensor, likeliest: Tensor, draws: Draws) -> Tensor:
    """Return the token that each row's number draws: int64 [num_rows]; borders are sums in float64.

    A row whose largest logit is not finite keeps its top token.
    """
    temperatures = draws.temperatures.clamp(min=MIN_TEMPERATURE).to(logits.dtype)
    ends = ((logits - largest[:, None]) / temperatures[:, None]).exp().double().cumsum(dim=-1)
    total = ends[:, -1:].contiguous()
    places = torch.searchsorted(ends, draws.numbers[:, None].double() * total, right=True)
    places = torch.minimum(places, torch.searchsorted(ends, total))[:, 0]
    return torch.where((draws.temperatures > 0) & largest.isfinite(), places, likeliest)


MAX_PER_THREAD = 32
"""Tokens of a thread; each takes registers for its top two and a position."""

NUM_PROGRAMS = 2048
"""Parts of all rows that keep a card of some hundred processors busy."""

MIN_PROBABILITY = 1e-5
"""The smallest probability of a token that a random number draws: rounding moves no border by as much."""


class Accept:
    """The op. A shape has num_rows, vocab_size, num_seqs, and `draws`: 1 if tokens are sampled."""

    name = "accept"

    parity_shapes: Sequence[Shape] = (
        {"num_rows": 1, "vocab_size": 1, "num_seqs": 1, "draws": 0},
        {"num_rows": 9, "vocab_size": 1023, "num_seqs": 3, "draws": 0},
        {"num_rows": 3, "vocab_size": 5000, "num_seqs": 1, "draws": 1},
        {"num_rows": 2, "vocab_size": 2048, "num_seqs": 2, "draws": 1},
    )
    benchmark_shapes: Sequence[Shape] = (
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
        """Require a token for each thread, no more than registers hold, and parts that fill half a block."""
        num_threads, block = 32 * variant["num_warps"], variant["BLOCK"]
        is_filled = variant["PARTS"] == 1 or variant["PARTS"] * block <= 2 * shape["vocab_size"]
        return is_filled and num_threads <= block <= MAX_PER_THREAD * num_threads

    def default(self, shape: Shape) -> Variant:
        """Return one 16-byte load of bfloat16 a thread and iteration, and as many parts as idle processors allow."""
        block = 1024
        most = min(128, shape["vocab_size"] // block, NUM_PROGRAMS // round_up_rows(shape["num_rows"]))
        parts = 1 << max(most, 1).bit_length() - 1
        return {"PARTS": parts, "BLOCK": block, "LOADS_AHEAD": 1, "num_warps": 4, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """Name the vocabulary size, and the number of rows rounded up to a power of 4."""
        return f"vocab_size={shape['vocab_size']} rows<={round_up_rows(shape['num_rows'])}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make rows with NaN between them, some with ties at the top, and drafts of which most tokens are right."""
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
            draws = Draws(temperatures, _make_uniform_numbers(logits, temperatures, draw(num_rows)))
        draft = torch.full((num_rows,), -1, dtype=torch.int64, device=device)
        chosen = naive_accept(logits.double(), draft, starts, draws)[0]
        draft.copy_(torch.where(draw(num_rows) < 0.8, chosen, (chosen + 1) % vocab_size))
        draft[starts[1:].long() - 1] = -1
        return {"logits": logits, "draft": draft, "row_starts": starts, "draws": draws}

    def run_kernels(self, inputs: Inputs, variant: Variant | None = None) -> AcceptOutput:
        """Run the kernels; without `draft` and `row_starts` nothing is counted."""
        from kernels.accept.kernel import launch

        logits, row_starts, draws = inputs["logits"], inputs["row_starts"], inputs["draws"]
        if variant is None:
            num_seqs = 0 if row_starts is None else len(row_starts) - 1
            rows, vocab = logits.shape
            shape = {"num_rows": rows, "vocab_size": vocab, "num_seqs": num_seqs, "draws": int(draws is not None)}
            variant = get_variant(self, shape, logits.device, logits.dtype)
        return launch(**inputs, variant=variant)

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        return self.run_kernels(inputs, variant).split_columns()

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return naive_accept(**inputs)

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return the top two by two passes over the logits, and the same compiled."""
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
        """Count logits and drafts read, output written, one comparison a logit; sampling adds three operations
        a logit.
        """
        num_rows, num_logits = shape["num_rows"], shape["num_rows"] * shape["vocab_size"]
        drafts = num_rows * torch.int64.itemsize + (shape["num_seqs"] + 1) * torch.int32.itemsize
        drawn_with = num_rows * (torch.float32.itemsize + torch.float64.itemsize) if shape["draws"] else 0
        words = WORDS_PER_ROW * num_rows + shape["num_seqs"]
        num_bytes = num_logits * dtype.itemsize + drafts + drawn_with + words * torch.int32.itemsize
        return Cost(num_bytes, num_logits * (4 if shape["draws"] else 1))


def _make_uniform_numbers(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> Tensor:
    """Return a number for each row, float64 [num_rows], at the centre of the interval of the token that `uniform`
    draws.

    For a token of very small probability, the borders depend on rounding; the top token is drawn instead.
    """
    scores = logits.double() / temperatures.clamp(min=MIN_PROBABILITY)[:, None]
    shares = scores.softmax(dim=-1)
    ends = shares.cumsum(dim=-1)
    places = torch.searchsorted(ends, uniform[:, None].double() * ends[:, -1:], right=True)
    places = places.clamp(max=logits.shape[1] - 1)
    places = torch.where(shares.gather(1, places) < MIN_PROBABILITY, shares.argmax(dim=-1, keepdim=True), places)
    return ((ends.gather(1, places) - shares.gather(1, places) / 2) / ends[:, -1:])[:, 0]


OP = Accept()


GROUPS = 16
"""Each row is folded into this many parts, laid over one another, so that the top two are searched in one part only."""

INFINITE = 0x7F80
"""The bits of bfloat16's infinity. NaNs have larger ones. The same holds with the sign bit set."""


def find_top_tokens(logits: Tensor) -> TopTokens:
    """Find the top token of each row of logits [num_rows, vocab_size], in any float dtype and on any device."""
    if runs_triton(logits):
        return _find_top_on_device(logits)
    logits = logits.cpu()
    if logits.dtype == torch.bfloat16:
        return _find_top_bfloat16(logits)
    return _find_top_float32(logits.float().numpy())


def _find_top_bfloat16(logits: Tensor) -> TopTokens:
    bits = logits.view(torch.int16).numpy()
    ids, largest, second = _find_top_two(bits, np.iinfo(np.int16).min)
    found = TopTokens(ids, _to_float32(largest), _to_float32(second))
    # Bits of numbers below 0 have the opposite order, and a NaN's may have a sign: such rows are read as float32.
    unordered = (largest <= 0) | (second <= 0) | (largest > INFINITE)
    unordered |= bits.view(np.uint16).max(axis=1) > INFINITE + 0x8000
    for row in np.flatnonzero(unordered):
        one = _find_top_float32(logits[row : row + 1].float().numpy())
        found.token_ids[row], found.largest[row], found.second[row] = one.token_ids[0], one.largest[0], one.second[0]
    return found


def _find_top_float32(rows: NDArray[np.float32]) -> TopTokens:
    with np.errstate(invalid="ignore"):
        return TopTokens(*_find_top_two(rows, -np.inf))


def _find_top_two(rows: NDArray[Any], least: float) -> tuple[NDArray[np.intp], NDArray[Any], NDArray[Any]]:
    """Return the position of each row's maximum (the first of equals), the maximum, and the largest of the other
    values.

    `least` is a value below all others of the dtype. A NaN counts as the largest value.
    """
    num_rows, width = rows.shape
    groups = GROUPS if width % GROUPS == 0 else 1
    folded = rows.reshape(num_rows, groups, width // groups)
    over = np.maximum.reduce(folded, axis=1)  # [num_rows, columns], the largest of each column's parts
    at = np.arange(num_rows)
    column = over.argmax(axis=1)
    largest = over[at, column]
    over[at, column] = least
    parts = folded[at, :, column]  # [num_rows, GROUPS], a copy
    part = parts.argmax(axis=1)
    parts[at, part] = least
    second = np.maximum(over.max(axis=1), parts.max(axis=1))
    places = part * folded.shape[2] + column
    for row in np.flatnonzero(second == largest):  # an equal value in another column may come first
        places[row] = rows[row].argmax()
    return places, largest, second


def _to_float32(bits: NDArray[np.int16]) -> NDArray[np.float32]:
    """Convert bfloat16 bits, the upper half of a float32, to float32."""
    return (bits.astype(np.int32) << 16).view(np.float32)


def _find_top_on_device(logits: Tensor) -> TopTokens:
    """Find the top tokens with one synchronization and one copy."""
    return OP.run_kernels({"logits": logits, "draft": None, "row_starts": None, "draws": None}).to_host().top_tokens


TILE = 1 << 15
"""Columns of one tile of the LM head."""


def find_top_tokens_by_tile(hidden: Tensor, tiles: Sequence[Callable[[Tensor], Tensor]]) -> TopTokens:
    """Find the top token of each row of hidden states [num_rows, hidden_size].

    tiles: the parts of the LM head in the order of token ids. Each maps hidden states to logits [num_rows, columns of
    the tile].
    """
    found, offset = None, 0
    for tile in tiles:
        logits = tile(hidden)
        part = find_top_tokens(logits)
        found = part if found is None else found.merge(part, offset)
        offset += logits.shape[1]
    assert found is not None, "a vocabulary has at least one tile"
    return found
