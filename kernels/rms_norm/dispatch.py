"""Checks shapes and picks the implementation by device."""

from __future__ import annotations

from torch import Tensor

from kernels.rms_norm import reference


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Scale each row of `x` to unit root mean square, times `weight`.

    x: [num_tokens, hidden_size], or [num_tokens, num_heads, head_dim] to norm each head, a slice of a wider projection
    too; weight: [size of a row], or [num_heads, head_dim] where each head has its own. The result is written to `out`,
    of x's shape and `x` itself if wanted, or to new memory.
    """
    _check(x, weight)
    normed = reference.rms_norm(x, weight, eps)
    return normed if out is None else out.copy_(normed)


def add_rms_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` to `hidden` in place, and return the RMSNorm of the sum as it was rounded.

    hidden, delta: [num_tokens, hidden_size]; weight: [hidden_size].
    """
    assert hidden.shape == delta.shape, f"hidden {tuple(hidden.shape)} and delta {tuple(delta.shape)} are to be added"
    _check(hidden, weight)
    return reference.add_rms_norm(hidden, delta, weight, eps)


def _check(x: Tensor, weight: Tensor) -> None:
    assert 2 <= x.dim() <= 3, f"rows or heads are normed, not {tuple(x.shape)}"
    assert weight.shape in (x.shape[-1:], x.shape[1:]), f"weight {tuple(weight.shape)} for {tuple(x.shape)}"
