"""Placing stored keys and values by chunks of tokens, whose intermediate values stay in the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import Scratch
from kernels.rope import rotate

TOKENS = 1024
"""Tokens of a chunk: 512 KB of float32 for two heads of 64."""


def place(
    keys: Tensor,
    values: Tensor,
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor,
    target_slots: Tensor,
    scratch: Scratch,
) -> None:
    """Bring one layer's keys and values of tokens to where a prompt has them.

    keys, before RoPE, and values: [num_stored, num_kv_heads, head_dim]; source_slots: int64 [num_tokens], the rows of
    both. cos, sin: [num_tokens, head_dim // 2], the table's rows for the new positions. The keys are rotated in float32
    and rounded once, with the bits of `apply_rope`, and written to the rows `target_slots`, int64 [num_tokens], of
    pool_keys and pool_values, [num_slots, num_kv_heads, head_dim]; no two may be the same.
    """
    for first in range(0, len(source_slots), TOKENS):
        chunk = slice(first, first + TOKENS)
        source, target = source_slots[chunk], target_slots[chunk]
        shape = (len(source), *keys.shape[1:])
        stored = scratch.take("stored", shape, keys.dtype)
        wide, rotated = (scratch.take(name, shape, torch.float32) for name in ("wide", "rotated"))
        wide.copy_(torch.index_select(keys, 0, source, out=stored))
        rotate(wide, cos[chunk], sin[chunk], out=rotated)
        pool_keys.index_copy_(0, target, stored.copy_(rotated))
        pool_values.index_copy_(0, target, torch.index_select(values, 0, source, out=stored))
