"""The interface of a model runner, and the runner by torch operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch

from engine.decoder import LM_HEAD_ROWS, Batch, Decoder
from engine.kv_cache import KVPages
from engine.kv_pool import KVPool
from engine.runner.cuda_graphs import Graphs
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import StepRows, build_batch, build_verifications
from engine.runner.verify import Verification, verify

CONTEXT = 512
"""Tokens that the rows of a measured pass attend to, about as many as in most edits."""


class ModelRunner(Protocol):
    """Runs forward passes over the rows of sequences whose pages are in one pool."""

    @property
    def graphs(self) -> Graphs | None:
        """The CUDA graphs that can be captured while no request is pending, if any."""
        ...

    def run(self, all_rows: Sequence[StepRows], pages: KVPages) -> list[Verification | None]:
        """Run the rows, write their KV and return each sequence's choice; None after a prompt chunk that is not the
        last.
        """
        ...

    def measure(self, num_rows: int) -> None:
        """Run a pass over a draft and score all its rows, in a pool that holds nothing yet."""
        ...


def count_measurable_rows(model: Decoder, pool: KVPool) -> int:
    """Return the largest number of rows that a measured pass has room for."""
    return min(pool.num_slots, model.config.max_positions)


def find_measure_start(num_rows: int, model: Decoder, pool: KVPool) -> int:
    """Return the position at which the rows of a measured pass begin."""
    return min(CONTEXT, count_measurable_rows(model, pool) - num_rows)


class TorchRunner:
    """The `ModelRunner` that uses `Decoder.forward_batch`."""

    graphs: Graphs | None = None

    def __init__(self, model: Decoder, pool: KVPool, reuse: KVReuse | None) -> None:
        self._model = model
        self._pool = pool
        self._reuse = reuse

    def run(self, all_rows: Sequence[StepRows], pages: KVPages) -> list[Verification | None]:
        """As `ModelRunner.run`."""
        batch, view = build_batch(all_rows, pages, self._pool, self._model.config.sliding_window)
        if self._reuse is not None:
            batch = replace(batch, recorder=self._reuse.build_recorder(all_rows))
        found = build_verifications(all_rows, self._model.forward_batch(batch, view))
        verify(self._model, [each for each in found if each is not None])
        return found

    def measure(self, num_rows: int) -> None:
        """As `ModelRunner.measure`."""
        window, start = self._model.config.sliding_window, find_measure_start(num_rows, self._model, self._pool)
        first_key = 0 if window is None else max(0, start + 1 - window)
        batch = Batch.from_chunks([(start, [0] * num_rows)], self._pool.device)
        view = self._pool.view([[(first_key, start + num_rows)]], [[(start, start + num_rows)]])
        for rows in torch.split(self._model.forward_batch(batch, view), LM_HEAD_ROWS):
            self._model.likeliest(rows)
