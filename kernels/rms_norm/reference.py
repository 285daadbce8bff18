"""RMSNorm in plain PyTorch: the truth that every faster version is compared with."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row of `x` to unit root mean square, times `weight` (Zhang & Sennrich 2019, arXiv 1910.07467).

    x: [num_tokens, hidden_size], or [num_tokens, num_heads, head_dim] to norm each head; weight: [size of a row], or
    [num_heads, head_dim]. The mean is taken in float32 at least and rounded once, as Llama does.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def add_rms_norm(hidden: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `delta` to `hidden` in place, rounding the sum to its dtype; returns the norm of that sum."""
    hidden += delta
    return rms_norm(hidden, weight, eps)
