"""CUDA graphs of the step shapes that recur, and their input buffers."""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.config import ModelConfig
from engine.kv_cache.prefix_cache import NO_PAGE
from engine.kv_pool import KVPool
from engine.layers import NO_ADAPTERS, Adapter, AdapterRows, MaskedAdapters
from engine.reuse.span_store import SpanStore
from engine.runner.staged_arrays import Arrays, count_staged_bytes, pack_arrays, stage_arrays
from engine.runner.step_rows import Numbers, PagedRows
from kernels.paged_attention import PagedBatch

WARM_UPS = 2
"""Runs before a capture: the first compiles kernels and allocates memory, which a capture must not."""

Work = Callable[[], Tensor]
"""Reads memory that stays in place and whose content changes from run to run; its launches do not depend on the
content."""


class Capture(Protocol):
    """Captures some work as a callable that repeats it. The result lies in the same memory each time, until the next
    call.
    """

    def __call__(self, work: Work) -> Work:
        """Capture the work; this also runs it."""
        ...


class CUDAGraphs:
    """Captures CUDA graphs that take temporary memory from one pool, so that only one of them may run at a time.

    All are captured on one stream: the allocator gives a graph the blocks of an earlier one only on the same stream,
    and each stream that multiplies has a workspace of cuBLAS (32 MiB on Hopper). Memory is smallest where the largest
    graph is captured first.
    """

    def __init__(self) -> None:
        self._pool: Any = None  # torch has no public name for its type
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, work: Work) -> Work:
        """As `Capture`; raises RuntimeError if memory is short. The current stream is the same afterwards."""
        current = torch.cuda.current_stream()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream = self._stream
        stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    work()
            current.wait_stream(stream)
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                out = work()
        finally:
            torch.cuda.set_stream(current)  # torch.cuda.graph leaves its stream set if the capture is invalid
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536)
"""Row counts of graphs, up to those of a lone edit with a long draft. A pass over more rows takes so long that its
launches do not matter."""

SEQS = (1, 4, 16, 64)
"""Sequence counts of graphs with sequences of several rows; an empty sequence costs a few programs that end at once."""

QUERIES = (4, 16, 64, 256)
"""The most rows of one sequence in graphs of several; beyond these, as many as the graph has rows."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The numbers of rows and sequences, and the most rows of one sequence."""

    num_rows: int
    num_seqs: int
    most_queries: int

    @classmethod
    def from_sequences(cls, sequences: Sequence[PagedRows]) -> StepShape:
        """Return the exact shape of these sequences."""
        return cls(
            sum(each.num_rows for each in sequences),
            len(sequences),
            max(each.num_rows for each in sequences),
        )

    @property
    def graph_shape(self) -> StepShape | None:
        """The shape of the graph that such a pass is padded to; None if it is too large for any.

        For decodes, a row each, rows and sequences are equally many: attention uses another grid for them. The lengths
        of sequences do not matter: attention reads them on the device.
        """
        num_rows, is_decode = _find_size(ROWS, self.num_rows), self.most_queries == 1
        num_seqs = num_rows if is_decode else _find_size(SEQS, self.num_seqs)
        if num_rows is None or num_seqs is None:
            return None
        if is_decode or num_seqs == 1:
            return StepShape(num_rows, num_seqs, 1 if is_decode else num_rows)
        return StepShape(num_rows, num_seqs, min(num_rows, _find_size(QUERIES, self.most_queries) or num_rows))


def list_first_shapes(most_seqs: int) -> list[StepShape]:
    """Return the shapes that every service comes to, those of most rows first: a draft or chunk of one sequence, and
    decodes of up to `most_seqs` sequences.
    """
    last = _find_size(ROWS, most_seqs) or ROWS[-1]
    shapes = [StepShape(rows, 1, rows) for rows in ROWS if rows > 1]
    shapes += [StepShape(rows, rows, 1) for rows in ROWS if rows <= last]
    return sorted(shapes, key=lambda shape: -shape.num_rows)


def _find_size(sizes: Sequence[int], least: int) -> int | None:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else None


NUM_SPARE_PAGES = 1
"""Spare pages of a pool: the empty one."""

NO_SLOT = -1
"""A slot whose keys and values are not written: for padding, and for rows that are not recorded."""


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """What the rows of a pass need to know of the pool.

    `empty_page`: a page of zeros, which a page table has in place of pages before the window: a tile of keys may begin
    there, and hidden values must be finite. `most_keys`: of a sequence. `has_store`: keys and values also go into the
    span store.
    """

    page_size: int
    window: int | None
    empty_page: int
    most_keys: int
    has_store: bool = False

    @classmethod
    def from_pool(cls, pool: KVPool, config: ModelConfig, store: SpanStore | None) -> PoolLayout:
        """Return the layout of a pool with NUM_SPARE_PAGES."""
        most_keys = min(config.max_positions, pool.num_pages * pool.page_size)
        return cls(pool.page_size, config.window, pool.num_pages, most_keys, store is not None)

    @property
    def most_pages(self) -> int:
        """The most pages of a sequence."""
        return -(-self.most_keys // self.page_size)


@dataclass(frozen=True, slots=True)
class InputBatch:
    """The inputs of a pass on the device. Rows after those of the last sequence are padding; their results mean
    nothing.
    """

    token_ids: Tensor  # int64 [num_rows]
    positions: Tensor  # int64 [num_rows]
    slots: Tensor  # int64 [num_rows]
    record_slots: Tensor | None  # int64 [num_rows], of the span store
    batch: PagedBatch
    adapters: AdapterRows | MaskedAdapters = NO_ADAPTERS


def build_arrays(
    sequences: Sequence[PagedRows], shape: StepShape, layout: PoolLayout, record_slots: Sequence[int] | Numbers = ()
) -> Arrays:
    """Return the arrays of an `InputBatch` for these sequences, or for none; `record_slots` are those of the first
    rows. The page table is the last, and has no padding.
    """
    num_rows: list[int] = []
    token_ids: list[int] = []
    positions: list[int] = []
    seq_lens: list[int] = []
    page_starts: list[int] = []
    table, page_size = array("i"), layout.page_size
    for each in sequences:
        seq_len = each.positions[-1] + 1
        num_rows.append(len(each.token_ids))
        token_ids += each.token_ids
        positions += each.positions
        seq_lens.append(seq_len)
        page_starts.append(len(table))
        table.extend(each.pages[: -(-seq_len // page_size)])
    page_table, row_positions = np.asarray(table, dtype=np.int32), np.array(positions, dtype=np.int64)
    if layout.window is not None:
        page_table = np.where(page_table == NO_PAGE, layout.empty_page, page_table).astype(np.int32)
    starts = page_starts if len(positions) == len(sequences) else np.repeat(page_starts, num_rows)
    own_pages = page_table[np.asarray(starts, dtype=np.int64) + row_positions // page_size]
    arrays: Arrays = {
        "token_ids": _pad(token_ids, shape.num_rows, 0),
        "positions": _pad(row_positions, shape.num_rows, 0),
        "slots": _pad(own_pages.astype(np.int64) * page_size + row_positions % page_size, shape.num_rows, NO_SLOT),
    }
    if layout.has_store:
        arrays["record_slots"] = _pad(record_slots, shape.num_rows, NO_SLOT)
    return arrays | {
        "query_starts": _pad([*accumulate(num_rows, initial=0)], shape.num_seqs + 1, len(positions), np.int32),
        "seq_lens": _pad(seq_lens, shape.num_seqs, 0, np.int32),
        "key_ends": _pad(row_positions + 1, shape.num_rows, 0, np.int32),
        "page_starts": _pad(page_starts, shape.num_seqs, 0, np.int32),
        "page_table": page_table,
    }


def build_inputs(tensors: Mapping[str, Tensor], shape: StepShape, layout: PoolLayout, most_keys: int) -> InputBatch:
    """Return the inputs from their arrays on the device; no sequence is longer than `most_keys`."""
    batch = PagedBatch(
        page_table=tensors["page_table"],
        page_starts=tensors["page_starts"],
        query_starts=tensors["query_starts"],
        seq_lens=tensors["seq_lens"],
        key_ends=tensors["key_ends"],
        page_size=layout.page_size,
        max_query_len=shape.most_queries,
        max_seq_len=most_keys,
    )
    return InputBatch(tensors["token_ids"], tensors["positions"], tensors["slots"], tensors.get("record_slots"), batch)


def _pad(
    values: Sequence[int] | Numbers, length: int, value: int, dtype: type[np.integer[Any]] = np.int64
) -> NDArray[np.integer[Any]]:
    """Return the values and padding behind them."""
    out = np.empty(length, dtype=dtype)
    out[: len(values)] = values
    out[len(values) :] = value
    return out


log = logging.getLogger(__name__)

PATIENCE = 16
"""Passes of a shape that run without a graph while the engine is busy; then its graph is captured before
the next one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One shape's input memory, and the captured work that reads it, for the rows of no adapters but these."""

    shape: StepShape
    layout: PoolLayout
    memory: Tensor  # uint8
    replay: Work

    def __call__(
        self,
        sequences: Sequence[PagedRows],
        record_slots: Sequence[int] | Numbers = (),
        adapters: AdapterRows = NO_ADAPTERS,
    ) -> Tensor:
        """Return the hidden states of the sequences' rows, [num_rows, hidden_size], which are valid until the next
        pass.
        """
        arrays = _put_first(adapters, self.shape, build_arrays(sequences, self.shape, self.layout, record_slots))
        host = pack_arrays(arrays, self.memory.device)
        self.memory[: len(host)].copy_(host, non_blocking=True)
        return self.replay()[: sum(each.num_rows for each in sequences)]


def _put_first(adapters: AdapterRows, shape: StepShape, arrays: Arrays) -> Arrays:
    """Return the arrays behind the masks of the adapters, if there are any."""
    return {"adapter_masks": adapters.build_masks(shape.num_rows)} | arrays if adapters.ranges else arrays


GraphKey = tuple[StepShape, tuple[Adapter, ...]]
"""The padded shape of a pass, and the adapters of its rows."""


class Graphs:
    """A limited number of graphs, each captured while no request is pending, or when its shape has come often enough.

    A graph is captured over a pass of padding alone, which writes nothing that anybody reads. If there are as many as
    there may be, a shape that comes often takes the place of the one that was used longest ago: the shapes of a
    service's first minutes are not those of its days.
    """

    def __init__(
        self,
        forward: Callable[[InputBatch], Tensor],
        layout: PoolLayout,
        device: torch.device,
        capture: Capture,
        most: int,
    ) -> None:
        self._forward = forward
        self._layout = layout
        self._device = device
        self._capture = capture
        self._most = most
        self._graphs: dict[GraphKey, Graph] = {}  # the one that was used last is last
        self._failed: set[GraphKey] = set()
        self._missed: Counter[GraphKey] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def has_work(self) -> bool:
        """Whether a shape without a graph has come and may have one without taking another one's place."""
        return bool(self._missed) and len(self._graphs) < self._most

    @torch.inference_mode()
    def capture_first(self, most_seqs: int) -> None:
        """Capture `list_first_shapes` before the first request, which also compiles the kernels of their passes."""
        for shape in list_first_shapes(most_seqs):
            self.find(shape, at_once=True)

    @torch.inference_mode()
    def capture_next(self) -> None:
        """Capture the shape that was missed most often."""
        if self.has_work:
            ((key, _),) = self._missed.most_common(1)
            self._capture_key(key)

    def keep_adapters(self, adapters: Collection[Adapter]) -> None:
        """Drop the graphs of other adapters than these, which would keep their weights in memory."""
        kept = set(adapters)
        self._graphs = {key: graph for key, graph in self._graphs.items() if kept.issuperset(key[1])}
        self._failed = {key for key in self._failed if kept.issuperset(key[1])}
        self._missed = Counter({key: count for key, count in self._missed.items() if kept.issuperset(key[1])})

    def find(self, shape: StepShape, adapters: tuple[Adapter, ...] = (), *, at_once: bool = False) -> Graph | None:
        """Return the graph that a pass of this shape fits, whose rows have these adapters, or None. `at_once`: capture
        it now if there may be one.
        """
        padded = shape.graph_shape
        if padded is None or (padded, adapters) in self._failed:
            return None
        key = padded, adapters
        if key in self._graphs:
            self._graphs[key] = graph = self._graphs.pop(key)
            return graph
        self._missed[key] += 1
        if (at_once and len(self._graphs) < self._most) or self._missed[key] > PATIENCE:
            self._capture_key(key)
        return self._graphs.get(key)

    def _capture_key(self, key: GraphKey) -> None:
        """Capture a pass. If that fails, most likely for want of memory, passes such as this run without a graph."""
        del self._missed[key]
        if len(self._graphs) >= self._most:
            del self._graphs[next(iter(self._graphs))]
        shape, adapters = key
        rows = AdapterRows(tuple((adapter, 0, 0) for adapter in adapters))
        arrays = _put_first(rows, shape, build_arrays([], shape, self._layout))
        most_entries = shape.num_seqs * self._layout.most_pages
        arrays["page_table"] = np.full(most_entries, self._layout.empty_page, dtype=np.int32)
        before = _count_reserved_bytes(self._device)
        try:
            memory = torch.empty(count_staged_bytes(arrays), dtype=torch.uint8, device=self._device)
            tensors = stage_arrays(arrays, self._device, memory)
            inputs = build_inputs(tensors, shape, self._layout, self._layout.most_keys)
            if adapters:
                inputs = replace(inputs, adapters=MaskedAdapters(adapters, tensors["adapter_masks"]))
            replay = self._capture(lambda: self._forward(inputs))
        except RuntimeError:
            log.exception("the passes of %s cannot be captured; from now on they run as they come", shape)
            self._failed.add(key)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            return
        self._graphs[key] = Graph(shape, self._layout, memory, replay)
        taken = (_count_reserved_bytes(self._device) - before) / 1e6
        log.info("captured %s, %d of at most %d, for %.0f MB", shape, len(self), self._most, taken)


def _count_reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
