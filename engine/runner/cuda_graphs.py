"""What a pass tells the device of its rows: built on the host, padded to a shape, and brought there in one copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.cuda.sequence_rows import Numbers, SequenceRows
from engine.cuda.shapes import PassShape
from engine.kv_pool import KVPool
from engine.paging.page import NO_PAGE
from engine.reuse.store import SpanStore
from kernels.paged_attention import PagedBatch

NUM_SPARE_PAGES = 1
"""Of a pool: the empty one."""

NO_SLOT = -1
"""What is to be written there is written nowhere: keys and values of padding, and those that are not kept."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """What the rows of a pass have to know of the pool.

    `empty_page`: one of zeros, which stands in a page table where a page behind the window was: a tile of keys may
    begin there, and what it hides must be finite. `has_store`: keys and values go into the span store, too.
    """

    page_size: int
    window: int | None
    empty_page: int
    has_store: bool = False

    @classmethod
    def of(cls, pool: KVPool, window: int | None, store: SpanStore | None) -> PoolLayout:
        """Of a pool that has NUM_SPARE_PAGES."""
        return cls(pool.page_size, window, pool.num_pages, store is not None)


@dataclass(frozen=True, slots=True)
class PassInputs:
    """A pass on the device. Rows behind those of the last sequence are padding: their results mean nothing."""

    token_ids: Tensor  # int64 [num_rows]
    positions: Tensor  # int64 [num_rows]
    slots: Tensor  # int64 [num_rows]
    record_slots: Tensor | None  # int64 [num_rows], of the span store
    batch: PagedBatch


def arrays_of(
    sequences: Sequence[SequenceRows], shape: PassShape, layout: PoolLayout, record_slots: Sequence[int] | Numbers = ()
) -> Arrays:
    """All that `PassInputs` holds, for some sequences or none; `record_slots` are those of the first rows."""
    window, page_size = layout.window, layout.page_size
    arrays: Arrays = {
        "token_ids": _padded([each.token_ids for each in sequences], shape.num_rows, 0),
        "positions": _padded([each.positions for each in sequences], shape.num_rows, 0),
        "slots": _padded([each.slots(page_size) for each in sequences], shape.num_rows, NO_SLOT),
    }
    if layout.has_store:
        arrays["record_slots"] = _padded([record_slots], shape.num_rows, NO_SLOT)
    if shape.num_words:
        arrays["tree"] = np.zeros((shape.num_rows, shape.num_words), dtype=np.int64)
        trees = [each.tree(window, shape.num_words) for each in sequences]
        arrays["tree"][: sum(map(len, trees))] = np.concatenate(trees) if trees else 0
        arrays["tree_starts"] = _padded([[each.tree_start(window) for each in sequences]], shape.num_seqs, 0, np.int32)
    ends = np.cumsum([0, *(each.num_rows for each in sequences)])
    arrays |= {
        "query_starts": _padded([ends], shape.num_seqs + 1, int(ends[-1]), np.int32),
        "seq_lens": _padded([[each.num_places for each in sequences]], shape.num_seqs, 0, np.int32),
        "key_ends": _padded([each.key_ends(window) for each in sequences], shape.num_rows, 0, np.int32),
        "page_table": _page_table(sequences, shape, layout),
    }
    return arrays


def inputs_of(tensors: Mapping[str, Tensor], shape: PassShape, layout: PoolLayout) -> PassInputs:
    """The arrays once they are on the device."""
    batch = PagedBatch(
        page_table=tensors["page_table"],
        query_starts=tensors["query_starts"],
        seq_lens=tensors["seq_lens"],
        key_ends=tensors["key_ends"],
        page_size=layout.page_size,
        most_queries=shape.most_queries,
        most_keys=shape.most_keys,
        tree_starts=tensors.get("tree_starts"),
        tree=tensors.get("tree"),
    )
    return PassInputs(tensors["token_ids"], tensors["positions"], tensors["slots"], tensors.get("record_slots"), batch)


def _padded(
    parts: Sequence[Sequence[int] | Numbers], length: int, value: int, dtype: type[np.integer[Any]] = np.int64
) -> NDArray[np.integer[Any]]:
    """The parts behind one another, and the value behind them."""
    out = np.full(length, value, dtype=dtype)
    if parts:
        joined = np.concatenate([np.asarray(part, dtype=dtype) for part in parts])
        out[: len(joined)] = joined
    return out


def _page_table(sequences: Sequence[SequenceRows], shape: PassShape, layout: PoolLayout) -> NDArray[np.int32]:
    table = np.full((shape.num_seqs, shape.num_pages(layout.page_size)), layout.empty_page, dtype=np.int32)
    for row, each in zip(table, sequences, strict=False):
        num_pages = -(-each.num_places // layout.page_size)
        own = each.pages[:num_pages]
        row[:num_pages] = np.where(own == NO_PAGE, layout.empty_page, own)
    return table
