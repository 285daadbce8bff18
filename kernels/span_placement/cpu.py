"""Places stored keys and values on a CPU, in chunks of tokens.

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

Rows = Tensor | slice
"""Which rows: neighbours as a slice, others as int64 [num_rows]."""


def rows_at(slots: Tensor) -> Rows:
    """The slots as a slice where they are neighbours."""
    first, end = int(slots[0]), int(slots[0]) + len(slots)
    return slice(first, end) if torch.equal(slots, torch.arange(first, end)) else slots


def read(rows: Tensor, at: Rows, out: Tensor) -> Tensor:
    """Some rows: those in memory where they are neighbours, else copies in `out`."""
    if isinstance(at, slice):
        return rows[at]
    torch.index_select(_words(rows), 0, at, out=_words(out))
    return out


def write(rows: Tensor, at: Rows, values: Tensor) -> None:
    """Overwrite some rows."""
    if isinstance(at, slice):
        rows[at] = values
    else:
        _words(rows).index_copy_(0, at, _words(values))


def _words(rows: Tensor) -> Tensor:
    """Rows of any dtype as rows of 8 bytes each, if they can be cut so."""
    flat = rows.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat


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
    """As `kernels.span_placement.place`, all of it in host memory."""
    for first in range(0, len(source_slots), TOKENS):
        chunk = slice(first, first + TOKENS)
        source, target = rows_at(source_slots[chunk]), rows_at(target_slots[chunk])
        stored = scratch.take("stored", (len(cos[chunk]), *keys.shape[1:]), keys.dtype)
        rotated = _rotated(read(keys, source, stored), cos[chunk], sin[chunk], scratch)
        if isinstance(target, slice):
            pool_keys[target] = rotated
        else:
            write(pool_keys, target, stored.copy_(rotated))
        write(pool_values, target, read(values, source, stored))


def _rotated(keys: Tensor, cos: Tensor, sin: Tensor, scratch: Scratch) -> Tensor:
    """Keys [num_tokens, num_kv_heads, head_dim] in float32, rotated; until the next call."""
    num_tokens, num_kv_heads, head_dim = keys.shape
    wide = scratch.take("wide", tuple(keys.shape), torch.float32).copy_(keys)
    by_half = wide.view(num_tokens, num_kv_heads, 2, head_dim // 2).permute(2, 1, 0, 3)
    halves, rotated = (scratch.take(name, tuple(by_half.shape), torch.float32) for name in ("halves", "rotated"))
    rotate(halves.copy_(by_half).unbind(), cos, sin, out=rotated.unbind())
    by_half.copy_(rotated)
    return wide
