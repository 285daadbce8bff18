"""The interface of a model runner, the runner by torch operations, and the step times of a runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Batch, Decoder, LayerOps
from engine.device import describe_build
from engine.kv_cache import KVPages, page_runs
from engine.kv_pool import KVPool, PoolView
from engine.runner.cuda_graphs import Graphs
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import PagedRows, StepRows, Verification, build_batch, build_verifications, verify
from engine.speculation.step_times import (
    MEASURED,
    MEASURED_ON_CARD,
    StepTimes,
    StepTimesFile,
    measure_least_seconds,
    measure_times,
)

CONTEXT = 512
"""Tokens that the rows of a measured pass attend to, about as many as in most edits."""


Wait = Callable[[], list[Verification | None]]
"""Waits for a pass; returns each sequence's choice, None after a prompt chunk that is not the last."""


class ModelRunner(Protocol):
    """Runs forward passes over the rows of sequences whose pages are in one pool."""

    @property
    def launches_ahead(self) -> bool:
        """Whether `launch` returns before the pass is over."""
        ...

    @property
    def graphs(self) -> Graphs | None:
        """The CUDA graphs that can be captured while no request is pending, if any."""
        ...

    def launch(self, all_rows: Sequence[StepRows], pages: KVPages) -> Wait:
        """Begin to run the rows and to write their KV. The function that is returned has to be called before the next
        launch.
        """
        ...

    def compute_hidden(self, sequences: Sequence[PagedRows]) -> Tensor:
        """Run rows at neighbouring positions of each sequence, and write their KV. Return the hidden states of all,
        [num_rows, hidden_size], which are valid until the next pass.
        """
        ...

    def measure(self, num_rows: int) -> None:
        """Run a pass over a draft and score all its rows, in a pool that holds nothing yet."""
        ...


class RowsRunner(Protocol):
    """The part of a model runner that runs rows, on one of several ranks."""

    def compute_hidden(self, sequences: Sequence[PagedRows]) -> Tensor:
        """As `ModelRunner.compute_hidden`."""
        ...

    def build_pass(self, sequences: Sequence[PagedRows]) -> tuple[Tensor, LayerOps]:
        """Return the tokens and operations of the pass that `compute_hidden` runs, without a graph."""
        ...


def count_measurable_rows(model: Decoder, pool: KVPool) -> int:
    """Return the largest number of rows that a measured pass has room for."""
    return min(pool.num_slots, model.config.max_positions)


def build_measured_rows(num_rows: int, model: Decoder, pool: KVPool) -> PagedRows:
    """Return the rows of a measured pass, in the first pages of the pool."""
    start = min(CONTEXT, count_measurable_rows(model, pool) - num_rows)
    pages = range(-(-(start + num_rows) // pool.page_size))
    return PagedRows([0] * num_rows, range(start, start + num_rows), pages)


class TorchRunner:
    """The `ModelRunner` that uses `Decoder.forward_batch`."""

    graphs: Graphs | None = None
    launches_ahead = False

    def __init__(self, model: Decoder, pool: KVPool, reuse: KVReuse | None) -> None:
        self._model = model
        self._pool = pool
        self._reuse = reuse

    def launch(self, all_rows: Sequence[StepRows], pages: KVPages) -> Wait:
        """As `ModelRunner.launch`; this runs the whole pass."""
        batch, view = build_batch(all_rows, pages, self._pool, self._model.config.window)
        if self._reuse is not None:
            batch = replace(batch, recorder=self._reuse.build_recorder(all_rows))
        found = build_verifications(all_rows, self._model.forward_batch(batch, view))
        verify(self._model, [each for each in found if each is not None])
        return lambda: found

    def compute_hidden(self, sequences: Sequence[PagedRows]) -> Tensor:
        """As `ModelRunner.compute_hidden`."""
        return self._model.forward_batch(*self._build_batch(sequences))

    def build_pass(self, sequences: Sequence[PagedRows]) -> tuple[Tensor, LayerOps]:
        """As `RowsRunner.build_pass`."""
        batch, view = self._build_batch(sequences)
        return batch.token_ids, self._model.build_ops(batch, view)

    def _build_batch(self, sequences: Sequence[PagedRows]) -> tuple[Batch, PoolView]:
        window, page_size = self._model.config.window, self._pool.page_size
        reads, writes = [], []
        for each in sequences:
            start = each.positions[0]
            first_key = 0 if window is None else max(0, start + 1 - window)
            reads.append(page_runs(each.pages, page_size, first_key, each.seq_len))
            writes.append(page_runs(each.pages, page_size, start, each.seq_len))
        batch = Batch.from_chunks([(each.positions, each.token_ids) for each in sequences], self._pool.device)
        return batch, self._pool.view(reads, writes)

    def measure(self, num_rows: int) -> None:
        """As `ModelRunner.measure`."""
        rows = build_measured_rows(num_rows, self._model, self._pool)
        for hidden in torch.split(self.compute_hidden([rows]), LM_HEAD_ROWS):
            self._model.likeliest(hidden)


OUTDATED = 1.5
"""The stored times are outdated if single-row passes are now quicker by this factor, or if the ratio of a pass of
TELLING rows to a single-row pass has changed by it. Such times were measured beside other work, which slows single-row
passes the most, so that on an overloaded machine rows look free."""

TELLING = 64
"""Rows of the pass that shows whether the stored times have the right shape: between a single one and long drafts."""


def load_or_measure_times(
    runner: ModelRunner, model: Decoder, pool: KVPool, folder: Path | None, clock: Callable[[], float]
) -> StepTimes:
    """Return the times that the folder holds for this model and machine, or measure them and write them there.

    Measuring takes a second, and `pool` must hold nothing yet. Without a folder, return the default times. The times
    stay as they are, so that equal requests take equal passes. Where passes can be captured as graphs, those that are
    measured are captured first, the largest before the others, which then take no further memory.
    """
    if folder is None:
        return StepTimes()
    file = StepTimesFile(folder, model.fingerprint.hex(), describe_build(pool.device))
    most = count_measurable_rows(model, pool)
    sizes = MEASURED if runner.graphs is None else MEASURED_ON_CARD
    for num_rows in sorted(sizes, reverse=True) if runner.graphs is not None else ():
        runner.measure(min(num_rows, most))
    times = file.read()
    if times is None or _are_outdated(times, runner, most, clock):
        times = measure_times(runner.measure, clock, most, sizes=sizes)
        file.write(times)
    return times


def _are_outdated(kept: StepTimes, runner: ModelRunner, most: int, clock: Callable[[], float]) -> bool:
    single = measure_least_seconds(runner.measure, 1, clock)
    if OUTDATED * single < kept(1):
        return True
    num_rows = min(TELLING, most)
    seconds = measure_least_seconds(runner.measure, num_rows, clock)
    return seconds > 0.0 and not 1.0 / OUTDATED < (seconds / single) / (kept(num_rows) / kept(1)) < OUTDATED
