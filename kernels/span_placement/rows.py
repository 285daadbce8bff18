"""Rows of host memory by their numbers, read and written as they lie where they are neighbours."""

from __future__ import annotations

import torch
from torch import Tensor

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
