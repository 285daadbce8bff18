"""RMSNorm, alone or fused with the addition of a residual."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.native import elementwise
from kernels.op import Cost, Inputs, Shape, Variant, round_up_to_power_of_2, runs_triton
from kernels.winners import get_variant

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Scale each row of `x` to a root mean square of one, times `weight`.

    x: [num_tokens, hidden_size], or [num_tokens, num_heads, head_dim] to normalise each head; it may be a slice of a
    wider projection. weight: [size of a row], or [num_heads, head_dim] for one weight per head, in any floating-point
    dtype. The result is written to `out` (x's shape; may be `x` itself) or to new memory.
    """
    _check(x, weight)
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise ValueError(f"out must be {list(x.shape)} {x.dtype}, not {list(out.shape)} {out.dtype}")
    if runs_triton(x):
        return _run(x, None, weight, eps, out)
    if elementwise.can_run(x) and (out is None or out.stride(-1) == 1):
        return elementwise.rms_norm(x, None, weight, eps, torch.empty(x.shape, dtype=x.dtype) if out is None else out)
    normed = naive_rms_norm(x, weight, eps)
    return normed if out is None else out.copy_(normed)


def add_rms_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` to `hidden` in place, and return the RMSNorm of the rounded sum.

    hidden, delta: [num_tokens, hidden_size]; weight: [hidden_size].
    """
    _check(hidden, weight)
    if delta.shape != hidden.shape or hidden.dim() != 2 or weight.dim() != 1 or delta.dtype != hidden.dtype:
        raise ValueError(f"{list(delta.shape)} {delta.dtype} cannot be added to {list(hidden.shape)} {hidden.dtype}")
    if runs_triton(hidden):
        return _run(hidden, delta, weight, eps, None)
    if elementwise.can_run(hidden):
        return elementwise.rms_norm(hidden, delta, weight, eps, torch.empty(hidden.shape, dtype=hidden.dtype))
    return naive_add_rms_norm(hidden, delta, weight, eps)


def _run(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, out: Tensor | None) -> Tensor:
    for each in (x, delta, weight, out):
        if each is not None and each.stride(-1) != 1 and each.shape[-1] > 1:
            raise ValueError("each row must be contiguous")
    normed: Tensor
    normed, *_ = OP.run({"x": x, "delta": delta, "weight": weight, "eps": eps, "out": out})
    return normed


def _check(x: Tensor, weight: Tensor) -> None:
    if not 2 <= x.dim() <= 3:
        raise ValueError(f"x must have 2 or 3 dimensions, not {list(x.shape)}")
    if weight.shape not in (x.shape[-1:], x.shape[1:]):
        raise ValueError(f"a weight {list(weight.shape)} does not fit {list(x.shape)}")


def naive_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row of `x` to a root mean square of one, times `weight` (Zhang & Sennrich 2019, arXiv 1910.07467).

    x: [num_tokens, hidden_size], or [num_tokens, num_heads, head_dim] to normalise each head. weight: [size of a row],
    or [num_heads, head_dim]. The mean is computed in float32 or float64 and the result rounded once before the weight
    is applied, as Llama does.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return ((wide * scale).to(x.dtype) * weight).to(x.dtype)


def naive_add_rms_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` to `hidden` in place, rounding the sum to its dtype, and return the norm of that sum."""
    hidden += delta
    return naive_rms_norm(hidden, weight, eps)


MAX_PER_THREAD = 64
"""Numbers of a thread: they stay in registers from the sum of squares to the product with the weight."""


class RmsNorm:
    """The op. A shape has num_tokens, num_heads (1 to normalise whole rows), the size of a row, and `adds`: 1 if a
    residual is added first.

    Heads are a slice of a wider projection, like the queries and keys that a model normalises.
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
    benchmark_shapes: Sequence[Shape] = (
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
        """Require no more numbers than registers hold and no idle threads; stages only in a persistent program."""
        num_threads, has_loop = 32 * variant["num_warps"], variant["PER_PROCESSOR"] > 0
        num_numbers = variant["ROWS"] * round_up_to_power_of_2(shape["size"])
        fits = num_threads <= max(num_numbers, 32) <= MAX_PER_THREAD * num_threads
        return fits and (has_loop or variant["num_stages"] == 1)

    def default(self, shape: Shape) -> Variant:
        """Return one program for a long row or for several short ones: 8 numbers, one 16-byte load, or 16 a thread."""
        block, num_rows = round_up_to_power_of_2(shape["size"]), shape["num_tokens"] * shape["num_heads"]
        rows = min(max(1, 2048 // block), 32, 1 << (max(num_rows, 1) - 1).bit_length())
        num_warps = min(16, max(1, rows * block // 256))
        return {"ROWS": rows, "PER_PROCESSOR": 0, "num_warps": num_warps, "num_stages": 1}

    def shape_class(self, shape: Shape) -> str:
        """Name the size of a row, and the number of rows rounded up to a power of 4."""
        rows = shape["num_tokens"] * shape["num_heads"]
        most = next((str(4**power) for power in range(9) if rows <= 4**power), "more")
        return f"size={shape['size']} adds={shape['adds']} rows<={most}"

    def inputs(self, shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> Inputs:
        """Make rows between others that are NaN."""
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
        from kernels.rms_norm.kernel import launch

        x, delta = inputs["x"], inputs["delta"]
        if variant is None:
            heads = 1 if x.dim() == 2 else x.shape[1]
            shape = {"num_tokens": x.shape[0], "num_heads": heads, "size": x.shape[-1], "adds": int(delta is not None)}
            variant = get_variant(self, shape, x.device, x.dtype)
        normed = launch(**inputs, variant=variant)
        return (normed,) if delta is None else (normed, x)

    def reference(self, inputs: Inputs) -> tuple[Tensor, ...]:
        x, delta, weight, eps = inputs["x"], inputs["delta"], inputs["weight"], inputs["eps"]
        if delta is None:
            return (naive_rms_norm(x, weight, eps),)
        return naive_add_rms_norm(x, delta, weight, eps), x

    def torch_baselines(self, inputs: Inputs) -> Mapping[str, Callable[[], tuple[Tensor, ...]]]:
        """Return torch's own norm after a sum, and both compiled into one."""
        x, delta, weight, eps = inputs["x"], inputs["delta"], inputs["weight"], inputs["eps"]

        def eager() -> tuple[Tensor, ...]:
            if delta is None:
                return (F.rms_norm(x, weight.shape, weight, eps),)
            x.add_(delta)
            return F.rms_norm(x, weight.shape, weight, eps), x

        return {"eager": eager, "compile": torch.compile(eager)}

    def cost(self, shape: Shape, dtype: torch.dtype) -> Cost:
        """Count rows read and written, the weight, a residual and its sum if there is one; 4 operations a number."""
        num_numbers = prod(shape[name] for name in ("num_tokens", "num_heads", "size"))
        moved = (4 if shape["adds"] else 2) * num_numbers + shape["size"]
        return Cost(moved * dtype.itemsize, (5 if shape["adds"] else 4) * num_numbers)


OP = RmsNorm()
