"""The interface of a model runner, and the runner by torch operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor

from engine.decoder import Batch, Decoder
from engine.kv_cache import KVPages
from engine.kv_pool import KVPool
from engine.runner.cuda_graphs import Graphs
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import PassRows, batch_of, verifications
from engine.runner.verify import Verification, verify
from engine.sampling import Sampler
from engine.types import GenerationRequest

CONTEXT = 512
"""Tokens that the rows of a measured pass look back on, as most of an edit's do."""


class Passes(Protocol):
    """Runs passes over the rows of sequences whose pages are in one pool."""

    @property
    def graphs(self) -> Graphs | None:
        """What can be done for later passes while nobody waits, if anything."""
        ...

    def run(self, all_rows: Sequence[PassRows], pages: KVPages) -> list[Verification | None]:
        """What is chosen behind each sequence's rows, whose KV is written; None behind a part of a prompt."""
        ...

    def measure(self, num_rows: int) -> None:
        """Run a pass over a draft, all rows of which are scored, in a pool that holds nothing yet."""
        ...


def most_measured(model: Decoder, pool: KVPool) -> int:
    """Rows of a measured pass that have room."""
    return min(pool.num_slots, model.config.max_positions)


def measured_start(num_rows: int, model: Decoder, pool: KVPool) -> int:
    """The position at which the rows of a measured pass begin."""
    return min(CONTEXT, most_measured(model, pool) - num_rows)


class _AllRows:
    """Wants to see every row."""

    def rows_behind(self, num_accepted: int, num_drafted: int) -> int:
        return num_drafted

    def observe(self, num_output: int, draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        pass


def measured_verification(hidden: Tensor) -> Verification:
    """Of a measured pass's rows, [num_rows, hidden_size]."""
    sampler = Sampler(GenerationRequest([0], 1))
    return Verification(hidden, sampler, [], [0] * (len(hidden) - 1), _AllRows())


class TorchPasses:
    """`Passes` through `Decoder.forward_batch`."""

    graphs: Graphs | None = None

    def __init__(self, model: Decoder, pool: KVPool, reuse: KVReuse | None) -> None:
        self._model = model
        self._pool = pool
        self._reuse = reuse

    def run(self, all_rows: Sequence[PassRows], pages: KVPages) -> list[Verification | None]:
        """As `Passes.run`."""
        batch, view = batch_of(all_rows, pages, self._pool, self._model.config.sliding_window)
        if self._reuse is not None:
            batch = replace(batch, recorder=self._reuse.recorder(all_rows))
        found = verifications(all_rows, self._model.forward_batch(batch, view))
        verify(self._model, [each for each in found if each is not None])
        return found

    def measure(self, num_rows: int) -> None:
        """As `Passes.measure`."""
        window, start = self._model.config.sliding_window, measured_start(num_rows, self._model, self._pool)
        first_key = 0 if window is None else max(0, start + 1 - window)
        batch = Batch.of([(start, [0] * num_rows)], self._pool.device)
        view = self._pool.view([[(first_key, start + num_rows)]], [[(start, start + num_rows)]])
        verify(self._model, [measured_verification(self._model.forward_batch(batch, view))])
