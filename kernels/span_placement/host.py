"""Placement of keys and values by torch, on a CPU.

Neighbouring slots are read and written in place; other rows are gathered and scattered as 8-byte words, in two thirds
of the time that rows of bf16 take.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import Scratch
from kernels.rope import apply_rope

Rows = Tensor | slice
"""A slice for neighbouring rows, otherwise int64 [num_rows]."""


def to_rows(slots: Tensor) -> Rows:
    """Return slots as a slice if they are neighbours."""
    first, end = int(slots[0]), int(slots[0]) + len(slots)
    return slice(first, end) if torch.equal(slots, torch.arange(first, end)) else slots


def read(rows: Tensor, at: Rows, out: Tensor) -> Tensor:
    """Return some rows: a view if they are neighbours, otherwise copies in `out`."""
    if isinstance(at, slice):
        return rows[at]
    torch.index_select(_view_as_words(rows), 0, at, out=_view_as_words(out))
    return out


def write(rows: Tensor, at: Rows, values: Tensor) -> None:
    """Overwrite some rows."""
    if isinstance(at, slice):
        rows[at] = values
    else:
        _view_as_words(rows).index_copy_(0, at, _view_as_words(values))


def _view_as_words(rows: Tensor) -> Tensor:
    """View rows of any dtype as rows of 8-byte words, if their size allows it."""
    flat = rows.flatten(1)
    return flat.view(torch.int64) if flat.shape[1] * flat.element_size() % 8 == 0 else flat


TOKENS = 4096
"""Tokens of a chunk: its copies stay in the cache."""


def place_on_cpu(
    keys: Tensor,
    values: Tensor | None,
    source_slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    pool_keys: Tensor,
    pool_values: Tensor | None,
    target_slots: Tensor,
    scratch: Scratch,
) -> None:
    """Do the same as `kernels.span_placement.place` by torch, with keys and values in host memory."""
    for first in range(0, len(source_slots), TOKENS):
        chunk = slice(first, first + TOKENS)
        source, target = to_rows(source_slots[chunk]), to_rows(target_slots[chunk])
        stored = scratch.take("stored", (len(cos[chunk]), *keys.shape[1:]), keys.dtype)
        rotated = apply_rope(read(keys, source, stored), cos[chunk].cpu(), sin[chunk].cpu()).to(pool_keys.device)
        if isinstance(target, slice):
            pool_keys[target] = rotated
        else:
            write(pool_keys, target, rotated)
        if values is not None and pool_values is not None:
            write(pool_values, target, read(values, source, stored).to(pool_values.device))
