"""Passes by torch's operations: on a CPU, and wherever a decoder has a way of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine.batch import Batch
from engine.cuda.graphs import Graphs
from engine.kv_pool import KVPool
from engine.kv_reuse import KVReuse
from engine.model import Decoder
from engine.paging import KVPages
from engine.pass_rows import PassRows, batch_of, verifications
from engine.passes import measured_start, measured_verification
from engine.verification import Verification, verify


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
