"""Keys and values of one sequence that lie in several pieces of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.attention.scratch import Scratch

Run = tuple[Tensor, Tensor]
"""Keys and values of neighbouring positions, [num_positions, num_kv_heads, head_dim] each; any strides."""


def first_keys(runs: Sequence[Run], end: int) -> list[Run]:
    """The first `end` positions of the runs, as views."""
    first = []
    for keys, values in runs:
        if end <= 0:
            break
        first.append((keys[:end], values[:end]))
        end -= keys.shape[0]
    return first


def heads_first(parts: Sequence[Tensor], scratch: Scratch, name: str, dtype: torch.dtype) -> Tensor:
    """The parts behind one another as `dtype`, [num_kv_heads, seq_len, head_dim].

    Contiguous, in the scratch memory of that name.
    """
    _, num_kv_heads, head_dim = parts[0].shape
    whole = scratch.take(name, (num_kv_heads, sum(part.shape[0] for part in parts), head_dim), dtype)
    start = 0
    for part in parts:
        whole[:, start : start + part.shape[0]].copy_(part.transpose(0, 1))
        start += part.shape[0]
    return whole
