"""Small tensors of the host on their way to a device, for which nobody waits."""

from __future__ import annotations

import torch
from torch import Tensor


def uploaded(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, there once that has come so far; torch keeps the host's side until then."""
    if tensor.device == device:
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
