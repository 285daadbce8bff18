"""RoPE as values alone: what `torch.compile` makes one kernel of, where `apply_rope`'s writes into halves stop it."""

from __future__ import annotations

import torch
from torch import Tensor


def fusible_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As `apply_rope`, but for the last bits where a compiler fuses a product and a sum."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
