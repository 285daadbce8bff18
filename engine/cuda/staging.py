"""Small arrays of the host, brought to the device in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNMENT = 64
"""Bytes: where an array begins. Triton compiles a kernel anew for pointers that are no multiples of 16."""


def num_staged_bytes(arrays: Mapping[str, NDArray[np.generic]]) -> int:
    """Memory that they take behind one another."""
    return sum(_aligned(each.nbytes) for each in arrays.values())


def staged(
    arrays: Mapping[str, NDArray[np.generic]], device: torch.device, memory: Tensor | None = None
) -> dict[str, Tensor]:
    """The arrays as tensors on the device, in `memory`, uint8 there, or in new memory.

    What was in the memory is overwritten when the device comes to it: behind all that was launched before. torch keeps
    the host's side until the copy is done.
    """
    num_bytes = num_staged_bytes(arrays)
    host = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    if memory is None:
        memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
    tensors, first = {}, 0
    for name, array in arrays.items():
        flat = np.ascontiguousarray(array).reshape(-1)
        part = slice(first, first + flat.nbytes)
        host[part].numpy()[:] = flat.view(np.uint8)
        dtype = torch.from_numpy(flat[:0]).dtype
        tensors[name] = memory[part].view(dtype).view(array.shape)
        first += _aligned(flat.nbytes)
    memory[:num_bytes].copy_(host, non_blocking=True)
    return tensors


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
