"""What parity, tuner and benchmark need to know of RMSNorm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.op import Cost, Inputs, Shape, Variant
from kernels.rms_norm import reference
from kernels.tuner import variant_for

MOST_PER_THREAD = 64
"""Numbers of a thread: they are in registers from the sum of squares to the product with the weight."""


class RmsNorm:
    """The `Op`. A shape: num_tokens, num_heads (1 where a whole row is normed), size of what is normed, and `adds`, 1
    where something is added to the rows first.

    Heads are a slice of a wider projection, as queries and keys are where a model norms them.
    """

    name = "rms_norm"

    parity_shapes: Sequence[Shape] = (
        {"num_tokens": 1, "num_heads": 1, "size": 64, "adds": 1},
        {"num_tokens": 3, "num_heads": 1, "size": 1, "adds": 0},
        {"num_tokens": 7, "num_heads": 1, "size": 577, "adds": 1},
        {"num_tokens": 5, "num_heads": 3, "size": 128, "adds": 0},
        {"num_tokens": 2, "num_heads": 1, "size": 8192, "adds": 1},
        {"num_tokens": 9, "num_heads": 2, "size": 24, "adds": 0},
    )
    timed_shapes: Sequence[Shape] = (
        *({"num_tokens": each, "num_heads": 1, "size": 1536, "adds": 1} for each in (1, 64, 256, 8192)),
        *({"num_tokens": each, "num_heads": 1, "size": 3584, "adds": 1} for each in (1, 64, 256, 8192)),
        *({"num_tokens": each, "num_heads": 32, "size": 128, "adds": 0} for each in (1, 64, 8192)),
    )
    space: Mapping[str, Sequence[int]] = {
        "ROWS": (1, 2, 4, 8, 16, 32),
        "PER_PROCESSOR": (0, 2, 8),
        "num_warps": (1, 2, 4, 8, 16),
        "num_stages": (1, 3),
    }

    def is_valid(self, variant: Variant, shape: Shape) -> bool:
        """Neither more numbers than registers hold, nor threads without one; stages where a program goes on."""
        num_threads, has_loop = 32 * variant["num_warps"], variant["PER_PROCESSOR"] > 0
        fits = num_threads <= max(variant["ROWS"] * _block(shape), 32) <= MOST_PER_THREAD * num_threads
        return fits and (has_loop or variant["num_stages"] == 1)

    def default(self, shape: Shape) -> Variant:
        """A program for each long row, for some short ones together: 8 numbers, one 16-byte load, or 16 a thread."""
        block, num_rows = _block(shape), shape["num_tokens"] * shape["num_heads"]
        rows = min(max(1, 2048 // block), 32, 1 << (max(num_rows, 1) - 1).bit_length())
        num_warps = min(16, max(1, rows * block // 256))
        return {"ROWS": rows, "PER_PROCESSOR": 0, "num_warps": num_warps, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """The size of what is normed, and the number of rows up to its next power of 4."""
        rows = shape["num_tokens"] * shape["num_heads"]
        most = next((str(4**power) for power in range(9) if rows <= 4**power), "more")
        return f"size={shape['size']} adds={shape['adds']} rows<={most}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Rows between others that are NaN."""
        num_tokens, num_heads, size = shape["num_tokens"], shape["num_heads"], shape["size"]

        def randn(*sizes: int) -> Tensor:
            return torch.randn(*sizes, device=device, generator=generator).to(dtype)

        wide = torch.full((num_tokens, num_heads + 2, size), torch.nan, dtype=dtype, device=device)
        x = wide[:, 1:-1].copy_(randn(num_tokens, num_heads, size) * 3)
        return {
            "x": x[:, 0] if num_heads == 1 else x,
            "delta": randn(num_tokens, size) if shape["adds"] else None,
            "weight": randn(size),
            "eps": 1e-6,
            "out": None,
        }

    def run(self, inputs: Inputs, variant: Variant | None = None) -> tuple[Tensor, ...]:
        """The kernel."""
        from kernels.rms_norm.kernel import launch

        x, delta = inputs["x"], inputs["delta"]
        if variant is None:
            heads = 1 if x.dim() == 2 else x.shape[1]
            shape = {"num_tokens": x.shape[0], "num_heads": heads, "size": x.shape[-1], "adds": int(delta is not None)}
            variant = variant_for(self, shape, x.device, x.dtype)
        normed = launch(**inputs, variant=variant)
        return (normed,) if delta is None else (normed, x)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Plain torch."""
        x, delta, weight, eps = inputs["x"], inputs["delta"], inputs["weight"], inputs["eps"]
        if delta is None:
            return (reference.rms_norm(x, weight, eps),)
        return reference.add_rms_norm(x, delta, weight, eps), x

    def torch_ways(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Torch's own norm behind a sum, and both compiled into one."""
        x, delta, weight, eps = inputs["x"], inputs["delta"], inputs["weight"], inputs["eps"]

        def eager() -> tuple[Tensor, ...]:
            if delta is None:
                return (F.rms_norm(x, weight.shape, weight, eps),)
            x.add_(delta)
            return F.rms_norm(x, weight.shape, weight, eps), x

        return {"eager": eager, "compile": torch.compile(eager)}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Rows in and out, the weight in; with a sum, what is added in and the sum out, too. 4 operations a number."""
        num_numbers = prod(shape[name] for name in ("num_tokens", "num_heads", "size"))
        moved = (4 if shape["adds"] else 2) * num_numbers + shape["size"]
        return Cost(moved * dtype.itemsize, (5 if shape["adds"] else 4) * num_numbers)


def _block(shape: Shape) -> int:
    return 1 << (shape["size"] - 1).bit_length()


OP = RmsNorm()
