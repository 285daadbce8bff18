"""Rotary position embedding in plain PyTorch (Su et al. 2021, arXiv 2104.09864), halves rotated as in GPT-NeoX."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rope_table(
    max_positions: int, head_dim: int, theta: float, device: torch.device, divisors: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, float32 [max_positions, head_dim // 2] each.

    `divisors`, one for each of the head_dim // 2 frequencies, slow them down (RoPE scaling).
    """
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)
    if divisors is not None:
        inverse /= torch.tensor(divisors, dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32, device=device), inverse)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` to its positions in float32 and round once.

    x: [num_tokens, num_heads, head_dim]; cos, sin: [num_tokens, head_dim // 2], the table's rows for these tokens.
    """
    wide = x.to(torch.float32)
    rotated = torch.empty_like(wide)
    rotate(wide, cos, sin, out=rotated)
    return rotated.to(x.dtype)


def rotate(wide: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """`apply_rope` from float32 to float32; `out` is not `wide`."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = wide.chunk(2, dim=-1)
    out_first, out_second = out.chunk(2, dim=-1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin)
