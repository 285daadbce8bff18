"""Placing stored keys and values on a CPU, by chunks of tokens in memory that is kept.

The rotation is four operations, quick where they run through memory from end to end; so the keys of a chunk are brought
into the order [half, head, token], in which angles lie as they are needed for every head, and back. Where slots are
neighbours they are read or written as they lie; elsewhere rows of 8-byte words are gathered or scattered, in two thirds
of the time that rows of bf16 take.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import Scratch
from kernels.rope import rotate
from kernels.span_placement import reference

TOKENS = 4096
"""Tokens of a chunk.

6,000 neighbours (2 heads of 64, 24 layers) take 18.4, 14.1 and 13.5 ms by 1,024, 2,048 and 4,096, into pages far apart
31.5, 18.4 and 16.9; copies alone take 2.9 (AMD EPYC, 2 cores).
"""


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

    keys, before RoPE, and values: [num_stored, num_kv_heads, head_dim], contiguous, in host memory; source_slots: int64
    [num_tokens], the rows of both. cos, sin: float32 [num_tokens, head_dim // 2], the table's rows for the new
    positions. The keys are rotated in float32 and rounded once, with the bits of `apply_rope`, and written to the rows
    `target_slots`, int64 [num_tokens], of pool_keys and pool_values, [num_slots, num_kv_heads, head_dim], contiguous,
    on any device; no two may be the same.
    """
    if pool_keys.device.type != "cpu":
        reference.place(keys, values, source_slots, cos, sin, pool_keys, pool_values, target_slots)
        return
    for first in range(0, len(source_slots), TOKENS):
        chunk = slice(first, first + TOKENS)
        source, target = _rows(source_slots[chunk]), _rows(target_slots[chunk])
        stored = scratch.take("stored", (len(cos[chunk]), *keys.shape[1:]), keys.dtype)
        rotated = _rotated(_read(keys, source, stored), cos[chunk], sin[chunk], scratch)
        if isinstance(target, slice):
            pool_keys[target] = rotated
        else:
            _write(pool_keys, target, stored.copy_(rotated))
        _write(pool_values, target, _read(values, source, stored))


def _rotated(keys: Tensor, cos: Tensor, sin: Tensor, scratch: Scratch) -> Tensor:
    """Keys [num_tokens, num_kv_heads, head_dim] in float32, rotated; until the next call."""
    num_tokens, num_kv_heads, head_dim = keys.shape
    wide = scratch.take("wide", tuple(keys.shape), torch.float32).copy_(keys)
    by_half = wide.view(num_tokens, num_kv_heads, 2, head_dim // 2).permute(2, 1, 0, 3)
    halves, rotated = (scratch.take(name, tuple(by_half.shape), torch.float32) for name in ("halves", "rotated"))
    rotate(halves.copy_(by_half).unbind(), cos, sin, out=rotated.unbind())
    by_half.copy_(rotated)
    return wide


def _rows(slots: Tensor) -> Tensor | slice:
    """The slots as a slice where they are neighbours."""
    first, end = int(slots[0]), int(slots[0]) + len(slots)
    return slice(first, end) if torch.equal(slots, torch.arange(first, end)) else slots


def _read(rows: Tensor, at: Tensor | slice, out: Tensor) -> Tensor:
    """Some rows: those in memory where they are neighbours, else copies in `out`."""
    if isinstance(at, slice):
        return rows[at]
    torch.index_select(_words(rows), 0, at, out=_words(out))
    return out


def _write(rows: Tensor, at: Tensor | slice, values: Tensor) -> None:
    if isinstance(at, slice):
        rows[at] = values
    else:
        _words(rows).index_copy_(0, at, _words(values))


def _words(rows: Tensor) -> Tensor:
    """Rows of any dtype as rows of 8 bytes each, if they can be cut so."""
    flat = rows.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat
