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
from engine.runner.step_rows import Numbers, SequenceRows
from kernels.paged_attention import PagedBatch

WARM_UPS = 2
"""Runs before a capture: the first compiles kernels and takes memory, which a capture must not."""

Work = Callable[[], Tensor]
"""Reads memory that stays where it is, and what changes there from run to run; its launches do not depend on it."""


class Capture(Protocol):
    """Makes of some work what repeats it: whose result lies in the same memory each time, until the next one."""

    def __call__(self, work: Work) -> Work:
        """The work is run meanwhile, too."""
        ...


class CUDAGraphs:
    """Captures CUDA graphs, all of which take their passing memory from one pool: one of them runs at a time."""

    def __init__(self) -> None:
        self._pool: Any = None  # torch has no public name for its type

    def __call__(self, work: Work) -> Work:
        """As `Capture`; raises RuntimeError where memory is short."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            out = work()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class Reruns:
    """What a graph does, done without one: the work anew, on what lies in its memory, into the first result's."""

    def __call__(self, work: Work) -> Work:
        """As `Capture`."""
        out = work()

        def rerun() -> Tensor:
            return out.copy_(work())

        return rerun


ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows of a graph. A pass over more of them takes so long that its launches do not show."""

SEQS = (1, 4, 16, 64)
"""Sequences of a graph in which any of them has several rows; an empty one costs a few programs that end at once."""

FEWEST_KEYS = 2048
"""Places of a graph's longest sequence: this, four times as many, and so on."""

MOST_WORDS = 32
"""Words of a tree mask in a graph; a longer fork runs without one."""


@dataclass(frozen=True, slots=True)
class PassShape:
    """Rows and sequences, the most rows and the most places of one of them, and the words of a tree mask (0: none)."""

    num_rows: int
    num_seqs: int
    most_queries: int
    most_keys: int
    num_words: int = 0

    @classmethod
    def of(cls, sequences: Sequence[SequenceRows], window: int | None) -> PassShape:
        """What these take and no more."""
        return cls(
            sum(each.num_rows for each in sequences),
            len(sequences),
            max(each.num_rows for each in sequences),
            max(each.num_places for each in sequences),
            max(each.num_words(window) for each in sequences),
        )

    @property
    def padded(self) -> PassShape | None:
        """The shape of the graph that such a pass is padded to; None: it is too large for any.

        Of decodes, a row each, rows and sequences are as many: attention takes another grid for them.
        """
        num_rows, is_decode = _next(ROWS, self.num_rows), self.most_queries == 1
        num_seqs = num_rows if is_decode else _next(SEQS, self.num_seqs)
        if num_rows is None or num_seqs is None or self.num_words > MOST_WORDS:
            return None
        most_keys = FEWEST_KEYS
        while most_keys < self.most_keys:
            most_keys *= 4
        num_words = 1 << (self.num_words - 1).bit_length() if self.num_words else 0
        return PassShape(num_rows, num_seqs, 1 if is_decode else num_rows, most_keys, num_words)

    def num_pages(self, page_size: int) -> int:
        """Columns of the page table."""
        return -(-self.most_keys // page_size)


def _next(sizes: Sequence[int], least: int) -> int | None:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else None


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
        max_query_len=shape.most_queries,
        max_seq_len=shape.most_keys,
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


ALIGNMENT = 64
"""Bytes: where an array begins. Triton compiles a kernel anew for pointers that are no multiples of 16."""


def num_staged_bytes(arrays: Mapping[str, NDArray[np.generic]]) -> int:
    """Memory that they take behind one another."""
    return sum(_aligned(each.nbytes) for each in arrays.values())


def staged(
    arrays: Mapping[str, NDArray[np.generic]], device: torch.device, memory: Tensor | None = None
) -> dict[str, Tensor]:
    """The arrays as tensors on the device, in `memory`, uint8 there, or in new memory.

    What was in the memory is overwritten when the device comes to it: behind all that was launched before. torch keeps
    the host's side until the copy is done.
    """
    num_bytes = num_staged_bytes(arrays)
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
        first += _aligned(flat.nbytes)
    memory[:num_bytes].copy_(host, non_blocking=True)
    return tensors


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


log = logging.getLogger(__name__)

PATIENCE = 16
"""Passes of a shape that run without a graph while nothing is idle; then it is captured before the next one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """One shape's memory of inputs, and the work that reads it."""

    shape: PassShape
    layout: PoolLayout
    memory: Tensor  # uint8
    replay: Work

    def __call__(self, sequences: Sequence[SequenceRows], record_slots: Sequence[int] | Numbers = ()) -> Tensor:
        """The hidden states of the sequences' rows, [num_rows, hidden_size], until the next pass."""
        arrays = arrays_of(sequences, self.shape, self.layout, record_slots)
        staged(arrays, self.memory.device, self.memory)
        return self.replay()[: sum(each.num_rows for each in sequences)]


class Graphs:
    """At most so many graphs, each captured when nobody waits, or when its shape has come again and again.

    A graph is captured over a pass that is padding alone, and so writes nothing that anybody reads.
    """

    def __init__(
        self,
        forward: Callable[[PassInputs], Tensor],
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
        self._graphs: dict[PassShape, Graph] = {}
        self._missed: Counter[PassShape] = Counter()

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def has_work(self) -> bool:
        """Whether a shape has come that has no graph yet, and may have one."""
        return bool(self._missed) and len(self._graphs) < self._most

    @torch.inference_mode()
    def work(self) -> None:
        """Capture the shape that was missed most."""
        if self.has_work:
            ((shape, _),) = self._missed.most_common(1)
            self._make(shape)

    def find(self, shape: PassShape, *, at_once: bool = False) -> Graph | None:
        """The graph that a pass of this shape fits; None: there is none (yet). `at_once`: have one if there can be."""
        padded = shape.padded
        if padded is None or padded in self._graphs or len(self._graphs) >= self._most:
            return None if padded is None else self._graphs.get(padded)
        self._missed[padded] += 1
        if at_once or self._missed[padded] > PATIENCE:
            self._make(padded)
        return self._graphs.get(padded)

    def _make(self, shape: PassShape) -> None:
        """Memory that runs out here ends it for all shapes to come: passes run without graphs."""
        del self._missed[shape]
        arrays = arrays_of([], shape, self._layout)
        before = _reserved(self._device)
        try:
            memory = torch.empty(num_staged_bytes(arrays), dtype=torch.uint8, device=self._device)
            inputs = inputs_of(staged(arrays, self._device, memory), shape, self._layout)
            replay = self._capture(lambda: self._forward(inputs))
        except RuntimeError:
            log.exception("the passes of %s cannot be captured; from now on they run as they come", shape)
            self._most = len(self._graphs)
            return
        self._graphs[shape] = Graph(shape, self._layout, memory, replay)
        taken = (_reserved(self._device) - before) / 1e6
        log.info("captured %s, %d of at most %d, for %.0f MB", shape, len(self), self._most, taken)


def _reserved(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
