"""Copies the arrays of a pass to the device in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = dict[str, NDArray[Any]]

TORCH_DTYPES = {
    np.dtype(np.int64): torch.int64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.float32): torch.float32,
}

ALIGNMENT = 64
"""Bytes at whose multiples arrays begin. Triton compiles a kernel again for pointers that are no multiples of 16."""


def count_staged_bytes(arrays: Mapping[str, NDArray[np.generic]]) -> int:
    """Return the memory that the arrays take together."""
    return sum(_align(each.nbytes) for each in arrays.values())


def pack_arrays(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> Tensor:
    """Return the arrays one behind the other in host memory, uint8, from which a copy to the device waits for nobody:
    torch keeps it until the copy is done.
    """
    host = torch.empty(count_staged_bytes(arrays), dtype=torch.uint8, pin_memory=device.type == "cuda")
    buffer, first = host.numpy(), 0
    for values in arrays.values():
        buffer[first : first + values.nbytes] = values.reshape(-1).view(np.uint8)
        first += _align(values.nbytes)
    return host


def stage_arrays(
    arrays: Mapping[str, NDArray[np.generic]], device: torch.device, memory: Tensor | None = None
) -> dict[str, Tensor]:
    """Copy the arrays to the device, into `memory` (uint8 there) or new memory, and return them as tensors.

    The memory is overwritten when the device comes to the copy, after all earlier launches.
    """
    host = pack_arrays(arrays, device)
    if memory is None:
        memory = torch.empty(len(host), dtype=torch.uint8, device=device)
    memory[: len(host)].copy_(host, non_blocking=True)
    tensors, first = {}, 0
    for name, values in arrays.items():
        part = memory[first : first + values.nbytes].view(TORCH_DTYPES[values.dtype])
        tensors[name] = part if values.ndim == 1 else part.view(values.shape)
        first += _align(values.nbytes)
    return tensors


def _align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
