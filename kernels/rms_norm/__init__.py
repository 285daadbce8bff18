"""RMSNorm, alone or fused with the addition of a residual."""

from __future__ import annotations

from torch import Tensor

from kernels.op import runs_triton
from kernels.rms_norm.op import OP, naive_add_rms_norm, naive_rms_norm

__all__ = ["add_rms_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Scale each row of `x` to a root mean square of one, times `weight`.

    x: [num_tokens, hidden_size], or [num_tokens, num_heads, head_dim] to normalise each head; it may be a slice of a
    wider projection. weight: [size of a row], or [num_heads, head_dim] for one weight per head. The result is written
    to `out` (x's shape; may be `x` itself) or to new memory.
    """
    _check(x, weight)
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise ValueError(f"out must be {list(x.shape)} {x.dtype}, not {list(out.shape)} {out.dtype}")
    if runs_triton(x):
        return _run(x, None, weight, eps, out)
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
