"""Runs passes on all ranks: the first one says which rows, and all run their part of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Decoder
from engine.engine_config import EngineConfig
from engine.errors import RankLost
from engine.kv_cache import KVPages, PageCopy
from engine.kv_pool import KVPool, page_bytes
from engine.runner.cuda_graphs import NUM_SPARE_PAGES
from engine.runner.cuda_runner import KernelRunner, can_run_kernels
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import PagedRows, StepRows, build_verifications, verify
from engine.runner.torch_runner import (
    ModelRunner,
    RowsRunner,
    TorchRunner,
    Wait,
    build_measured_rows,
    count_measurable_rows,
)
from engine.tensor_parallel.decoder import OVERLAPS, Overlap, ShardDecoder
from engine.tensor_parallel.group import Command, RankGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.runner.cuda_graphs import Graphs

MEASURED_ROWS = (8, 512)
"""Rows of the passes by which the overlap is chosen: of decodes and drafts, and of a prompt's chunk."""

FEW_ROWS = 64
"""Passes of so many rows have the overlap of the first of these, larger ones that of the second."""


class ShardRows:
    """Runs this rank's part of a pass over rows of sequences."""

    def __init__(self, model: ShardDecoder, runner: RowsRunner) -> None:
        self._model = model
        self._runner = runner

    @torch.inference_mode()
    def run(self, sequences: Sequence[PagedRows], overlap: Overlap) -> Tensor:
        """Return the hidden states of all rows, [num_rows, hidden_size], which are the same on all ranks."""
        self._model.set_overlap(overlap)
        if overlap == "halves":
            halves = [each for each in split_rows(sequences) if each]
            return self._model.run_halves([self._runner.build_pass(half) for half in halves])
        return self._runner.compute_hidden(sequences)


def split_rows(sequences: Sequence[PagedRows]) -> tuple[list[PagedRows], list[PagedRows]]:
    """Return the first half of all rows, and the others. A sequence may have rows in both."""
    half = sum(each.num_rows for each in sequences) // 2
    first, second = list[PagedRows](), list[PagedRows]()
    ends = accumulate(each.num_rows for each in sequences)
    for each, end in zip(sequences, ends, strict=True):
        count = min(each.num_rows, max(0, half - (end - each.num_rows)))
        if count:
            first.append(PagedRows(each.token_ids[:count], each.positions[:count], each.pages))
        if count < each.num_rows:
            second.append(PagedRows(each.token_ids[count:], each.positions[count:], each.pages))
    return first, second


def pack_rows(sequences: Sequence[PagedRows], page_size: int) -> list[int]:
    """Return rows as numbers: of each sequence its counts of rows and pages, tokens, positions and pages."""
    numbers: list[int] = []
    for each in sequences:
        pages = list(each.pages[: -(-each.seq_len // page_size)])
        numbers += [each.num_rows, len(pages), *each.token_ids, *each.positions, *map(int, pages)]
    return numbers


def unpack_rows(numbers: Sequence[int]) -> list[PagedRows]:
    """Return the rows that `pack_rows` has packed."""
    sequences, at = list[PagedRows](), 0
    while at < len(numbers):
        num_rows, num_pages = numbers[at : at + 2]
        borders = list(accumulate((num_rows, num_rows, num_pages), initial=at + 2))
        parts = [numbers[first:end] for first, end in pairwise(borders)]
        sequences.append(PagedRows(*parts))
        at = borders[-1]
    return sequences


class ShardPool(KVPool):
    """The pool of the first rank; what is copied in it is copied on all ranks."""

    group: RankGroup

    @classmethod
    def from_pool(cls, pool: KVPool, group: RankGroup) -> ShardPool:
        """Return the same pool as one of several."""
        shared = cls.__new__(cls)
        shared.__dict__.update(pool.__dict__)
        shared.group = group
        return shared

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """As `KVPool.copy`."""
        if copies:
            self.group.send(
                Command.COPY, [number for each in copies for number in (each.source, each.target, each.num_tokens)]
            )
            super().copy(copies)


class ShardRunner:
    """The `ModelRunner` of the first rank."""

    graphs: Graphs | None = None
    launches_ahead = False

    def __init__(self, model: ShardDecoder, pool: ShardPool, runner: RowsRunner) -> None:
        self._model = model
        self._group = model.group
        self.pool = pool
        self._rows = ShardRows(model, runner)
        self.overlaps: Mapping[int, Overlap] = dict.fromkeys(MEASURED_ROWS, "none")

    def choose_overlaps(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Time passes of MEASURED_ROWS with each overlap, in a pool that holds nothing yet, and keep the quickest."""
        chosen: dict[int, Overlap] = {}
        for size in MEASURED_ROWS:
            rows = build_measured_rows(min(size, count_measurable_rows(self._model, self.pool)), self._model, self.pool)
            seconds: dict[Overlap, list[float]] = {overlap: [] for overlap in OVERLAPS}
            for overlap in OVERLAPS * 2:
                self.overlaps = dict.fromkeys(MEASURED_ROWS, overlap)
                started = clock()
                self.compute_hidden([rows])
                seconds[overlap].append(clock() - started)
            chosen[size] = min(OVERLAPS, key=lambda overlap: min(seconds[overlap]))
        self.overlaps = chosen

    def launch(self, all_rows: Sequence[StepRows], pages: KVPages) -> Wait:
        """As `ModelRunner.launch`; this runs the whole pass."""
        found = build_verifications(all_rows, self.compute_hidden([each.to_paged_rows(pages) for each in all_rows]))
        with self._all_or_none():
            verify(self._model, [each for each in found if each is not None])
        return lambda: found

    def compute_hidden(self, sequences: Sequence[PagedRows]) -> Tensor:
        """As `ModelRunner.compute_hidden`."""
        num_rows = sum(each.num_rows for each in sequences)
        overlap = self.overlaps[MEASURED_ROWS[num_rows > FEW_ROWS]]
        overlap = "none" if overlap == "halves" and num_rows < 2 else overlap
        with self._all_or_none():
            self._group.send(Command.RUN, [OVERLAPS.index(overlap), *pack_rows(sequences, self.pool.page_size)])
            return self._rows.run(sequences, overlap)

    def measure(self, num_rows: int) -> None:
        """As `ModelRunner.measure`."""
        rows = build_measured_rows(num_rows, self._model, self.pool)
        for hidden in torch.split(self.compute_hidden([rows]), LM_HEAD_ROWS):
            self._model.likeliest(hidden)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Give up all ranks if this one fails within a pass: the others wait for its part."""
        try:
            yield
        except RankLost:
            raise
        except Exception as error:
            why = f"the first rank failed within a pass ({type(error).__name__}: {error}); start the service anew"
            raise self._group.give_up(why) from error


def build_shard_runner(model: Decoder, config: EngineConfig) -> tuple[KVPool, KVReuse | None, ModelRunner]:
    """On the first rank: allocate the pools of all ranks, with as many pages, and choose the overlaps.

    Of `kv_bytes` each rank has its share. Raises as `build_runner`.
    """
    assert isinstance(model, ShardDecoder), "the caller looks"
    if config.kv_bytes is not None:
        config = replace(config, kv_bytes=config.kv_bytes // model.group.size)
    num_pages = config.num_pages(page_bytes(model.config, config.page_size, model.weights.kv_dtype))
    pool, runner = build_rows_runner(model, num_pages, config.page_size)
    model.group.send(Command.SET_UP, [num_pages, config.page_size])
    shard_runner = ShardRunner(model, ShardPool.from_pool(pool, model.group), runner)
    shard_runner.choose_overlaps()
    return shard_runner.pool, None, shard_runner


def build_rows_runner(model: ShardDecoder, num_pages: int, page_size: int) -> tuple[KVPool, RowsRunner]:
    """Allocate the pool of one rank, and build what runs its rows."""
    device, dtype = model.weights.device, model.weights.kv_dtype
    by_kernels = can_run_kernels(model, EngineConfig())
    pool = KVPool(model.config, num_pages, page_size, device, dtype, NUM_SPARE_PAGES if by_kernels else 0)
    return pool, KernelRunner(model, pool, None) if by_kernels else TorchRunner(model, pool, None)


def follow(model: ShardDecoder) -> None:
    """On other ranks than the first: do what that one says until it says to stop; raises RankLost if it is gone."""
    command, numbers = model.group.receive()
    if command is Command.STOP:
        return
    assert command is Command.SET_UP, "the first command"
    pool, runner = build_rows_runner(model, *numbers)
    rows = ShardRows(model, runner)
    while True:
        command, numbers = model.group.receive()
        match command:
            case Command.RUN:
                rows.run(unpack_rows(numbers[1:]), OVERLAPS[numbers[0]])
            case Command.FIND_LIKELIEST:
                model.likeliest(model.receive_rows(*numbers))
            case Command.COMPUTE_LOGITS:
                model.logits(model.receive_rows(*numbers))
            case Command.COPY:
                triples = zip(*(iter(numbers),) * 3, strict=True)
                pool.copy([PageCopy(*each) for each in triples])
            case Command.STOP:
                return
            case Command.SET_UP:
                raise AssertionError("a rank is set up once")
