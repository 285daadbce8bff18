"""The constants that a kernel is launched with: the tuner's winner for this card, or the op's default."""

from __future__ import annotations

import torch

from kernels.op import Op, Shape, Variant


def variant_for(op: Op, shape: Shape, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Variant:
    """What a wrapper launches its kernel with where it was given no variant. Looks up, never measures."""
    return op.default(shape)
