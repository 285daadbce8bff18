"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.native import elementwise


def rope_table(
    max_positions: int,
    head_dim: int,
    theta: float,
    device: torch.device,
    divisors: Sequence[float] | None = None,
    scale: float = 1.0,
    rotary_dim: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of every position, float32 [max_positions, head_dim // 2] each.

    `divisors`, one for each frequency, reduce the frequencies (RoPE scaling). `scale` multiplies cosines and sines, and
    so what is rotated by them (YaRN). Where only `rotary_dim` numbers of a head are rotated, they have rotary_dim // 2
    frequencies, and the other columns are those of an angle of 0.
    """
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    inverse = 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device) / rotary_dim)
    if divisors is not None:
        inverse /= torch.tensor(divisors, dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32, device=device), inverse)
    behind = (0, (head_dim - rotary_dim) // 2)
    return F.pad(angles.cos().mul_(scale), behind, value=1.0), F.pad(angles.sin().mul_(scale), behind)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` to its positions in float32 or float64, and round once.

    x: [num_tokens, num_heads, head_dim]. cos, sin: [num_tokens, head_dim // 2], the table's rows for these tokens.
    """
    if elementwise.can_run(x) and cos.dtype == sin.dtype == torch.float32:
        return elementwise.apply_rope(x, cos, sin)
    return naive_rope(x, cos, sin)


def naive_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `apply_rope`, by torch operations."""
    wide, cos, sin = x.to(torch.promote_types(x.dtype, torch.float32)), cos.unsqueeze(1), sin.unsqueeze(1)
    rotated = torch.empty_like(wide)
    (first, second), out = wide.chunk(2, dim=-1), rotated.chunk(2, dim=-1)
    torch.mul(first, cos, out=out[0]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[1]).addcmul_(first, sin)
    return rotated.to(x.dtype)


def fusible_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute `apply_rope` in a form that a compiler may fuse, which changes the last bits."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


@dataclass(frozen=True, slots=True)
class Record:
    """Rows of a store for values and keys before RoPE. A token with a negative slot is not kept."""

    slots: Tensor  # int64 [num_tokens], no two the same
    keys: Tensor  # [num_stored, num_kv_heads, head_dim]
    values: Tensor | None  # None with latent attention
