"""CUDA graphs of the step shapes that recur, and their input buffers."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kv_cache.prefix_cache import NO_PAGE
from engine.kv_pool import KVPool
from engine.reuse.span_store import SpanStore
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

FEWEST_KEYS = 2048
"""Keys of a graph's longest sequence: this number, four times as many, and so on."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """The numbers of rows and sequences, and the most rows and keys of one sequence."""

    num_rows: int
    num_seqs: int
    most_queries: int
    most_keys: int

    @classmethod
    def from_sequences(cls, sequences: Sequence[PagedRows]) -> StepShape:
        """Return the exact shape of these sequences."""
        return cls(
            sum(each.num_rows for each in sequences),
            len(sequences),
            max(each.num_rows for each in sequences),
            max(each.seq_len for each in sequences),
        )

    @property
    def graph_shape(self) -> StepShape | None:
        """The shape of the graph that such a pass is padded to; None if it is too large for any.

        For decodes, a row each, rows and sequences are equally many: attention uses another grid for them.
        """
        num_rows, is_decode = _find_size(ROWS, self.num_rows), self.most_queries == 1
        num_seqs = num_rows if is_decode else _find_size(SEQS, self.num_seqs)
        if num_rows is None or num_seqs is None:
            return None
        most_keys = FEWEST_KEYS
        while most_keys < self.most_keys:
            most_keys *= 4
        return StepShape(num_rows, num_seqs, 1 if is_decode else num_rows, most_keys)

    def num_pages(self, page_size: int) -> int:
        """Return the number of columns of the page table."""
        return -(-self.most_keys // page_size)


def _find_size(sizes: Sequence[int], least: int) -> int | None:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else None


NUM_SPARE_PAGES = 1
"""Spare pages of a pool: the empty one."""

NO_SLOT = -1
"""A slot whose keys and values are not written: for padding, and for rows that are not recorded."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class PoolLayout:
    """What the rows of a pass need to know of the pool.

    `empty_page`: a page of zeros, which a page table has in place of pages before the window: a tile of keys may begin
    there, and hidden values must be finite. `has_store`: keys and values also go into the span store.
    """

    page_size: int
    window: int | None
    empty_page: int
    has_store: bool = False

    @classmethod
    def from_pool(cls, pool: KVPool, window: int | None, store: SpanStore | None) -> PoolLayout:
        """Return the layout of a pool with NUM_SPARE_PAGES."""
        return cls(pool.page_size, window, pool.num_pages, store is not None)


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


def build_arrays(
    sequences: Sequence[PagedRows], shape: StepShape, layout: PoolLayout, record_slots: Sequence[int] | Numbers = ()
) -> Arrays:
    """Return the arrays of an `InputBatch` for these sequences, or for none; `record_slots` are those of the first
    rows.
    """
    arrays: Arrays = {
        "token_ids": _pad([each.token_ids for each in sequences], shape.num_rows, 0),
        "positions": _pad([each.positions for each in sequences], shape.num_rows, 0),
        "slots": _pad([each.find_slots(layout.page_size) for each in sequences], shape.num_rows, NO_SLOT),
    }
    if layout.has_store:
        arrays["record_slots"] = _pad([record_slots], shape.num_rows, NO_SLOT)
    ends = np.cumsum([0, *(each.num_rows for each in sequences)])
    arrays |= {
        "query_starts": _pad([ends], shape.num_seqs + 1, int(ends[-1]), np.int32),
        "seq_lens": _pad([[each.seq_len for each in sequences]], shape.num_seqs, 0, np.int32),
        "key_ends": _pad([each.positions + 1 for each in sequences], shape.num_rows, 0, np.int32),
        "page_table": _page_table(sequences, shape, layout),
    }
    return arrays


def build_inputs(tensors: Mapping[str, Tensor], shape: StepShape, layout: PoolLayout) -> InputBatch:
    """Return the inputs from their arrays on the device."""
    batch = PagedBatch(
        page_table=tensors["page_table"],
        query_starts=tensors["query_starts"],
        seq_lens=tensors["seq_lens"],
        key_ends=tensors["key_ends"],
        page_size=layout.page_size,
        max_query_len=shape.most_queries,
        max_seq_len=shape.most_keys,
    )
    return InputBatch(tensors["token_ids"], tensors["positions"], tensors["slots"], tensors.get("record_slots"), batch)


def _pad(
    parts: Sequence[Sequence[int] | Numbers], length: int, value: int, dtype: type[np.integer[Any]] = np.int64
) -> NDArray[np.integer[Any]]:
    """Join the parts and pad them with the value."""
    out = np.full(length, value, dtype=dtype)
    if parts:
        joined = np.concatenate([np.asarray(part, dtype=dtype) for part in parts])
        out[: len(joined)] = joined
    return out


def _page_table(sequences: Sequence[PagedRows], shape: StepShape, layout: PoolLayout) -> NDArray[np.int32]:
    table = np.full((shape.num_seqs, shape.num_pages(layout.page_size)), layout.empty_page, dtype=np.int32)
    for row, each in zip(table, sequences, strict=False):
        num_pages = -(-each.seq_len // layout.page_size)
        own = each.pages[:num_pages]
        row[:num_pages] = np.where(own == NO_PAGE, layout.empty_page, own)
    return table


ALIGNMENT = 64
"""Bytes at whose multiples arrays begin. Triton compiles a kernel again for pointers that are no multiples of 16."""


def count_staged_bytes(arrays: Mapping[str, NDArray[np.generic]]) -> int:
    """Return the memory that the arrays take together."""
    return sum(_align(each.nbytes) for each in arrays.values())


def stage_arrays(
    arrays: Mapping[str, NDArray[np.generic]], device: torch.device, memory: Tensor | None = None
) -> dict[str, Tensor]:
    """Copy the arrays to the device, into `memory` (uint8 there) or new memory, and return them as tensors.

    The memory is overwritten when the device comes to the copy, after all earlier launches. torch keeps the host's side
    until the copy is done.
    """
    num_bytes = count_staged_bytes(arrays)
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
        first += _align(flat.nbytes)
    memory[:num_bytes].copy_(host, non_blocking=True)
    return tensors


def _align(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


log = logging.getLogger(__name__)

PATIENCE = 16
"""Passes of a shape that run without a graph while the engine is busy; then its graph is captured before
the next one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One shape's input memory, and the captured work that reads it."""

    shape: StepShape
    layout: PoolLayout
    memory: Tensor  # uint8
    replay: Work

    def __call__(self, sequences: Sequence[PagedRows], record_slots: Sequence[int] | Numbers = ()) -> Tensor:
        """Return the hidden states of the sequences' rows, [num_rows, hidden_size], which are valid until the next
        pass.
        """
        arrays = build_arrays(sequences, self.shape, self.layout, record_slots)
        stage_arrays(arrays, self.memory.device, self.memory)
        return self.replay()[: sum(each.num_rows for each in sequences)]


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
        self._graphs: dict[StepShape, Graph] = {}  # the one that was used last is last
        self._failed: set[StepShape] = set()
        self._missed: Counter[StepShape] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def has_work(self) -> bool:
        """Whether a shape without a graph has come and may have one without taking another one's place."""
        return bool(self._missed) and len(self._graphs) < self._most

    @torch.inference_mode()
    def capture_next(self) -> None:
        """Capture the shape that was missed most often."""
        if self.has_work:
            ((shape, _),) = self._missed.most_common(1)
            self._capture_shape(shape)

    def find(self, shape: StepShape, *, at_once: bool = False) -> Graph | None:
        """Return the graph that a pass of this shape fits, or None. `at_once`: capture it now if there may be one."""
        padded = shape.graph_shape
        if padded is None or padded in self._failed:
            return None
        if padded in self._graphs:
            self._graphs[padded] = graph = self._graphs.pop(padded)
            return graph
        self._missed[padded] += 1
        if (at_once and len(self._graphs) < self._most) or self._missed[padded] > PATIENCE:
            self._capture_shape(padded)
        return self._graphs.get(padded)

    def _capture_shape(self, shape: StepShape) -> None:
        """Capture a shape. If that fails, most likely for want of memory, passes of this shape run without a graph."""
        del self._missed[shape]
        if len(self._graphs) >= self._most:
            del self._graphs[next(iter(self._graphs))]
        arrays = build_arrays([], shape, self._layout)
        before = _count_reserved_bytes(self._device)
        try:
            memory = torch.empty(count_staged_bytes(arrays), dtype=torch.uint8, device=self._device)
            inputs = build_inputs(stage_arrays(arrays, self._device, memory), shape, self._layout)
            replay = self._capture(lambda: self._forward(inputs))
        except RuntimeError:
            log.exception("the passes of %s cannot be captured; from now on they run as they come", shape)
            self._failed.add(shape)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            return
        self._graphs[shape] = Graph(shape, self._layout, memory, replay)
        taken = (_count_reserved_bytes(self._device) - before) / 1e6
        log.info("captured %s, %d of at most %d, for %.0f MB", shape, len(self), self._most, taken)


def _count_reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
