"""Passes by kernels: one copy to the device, a graph or its launches, and one wait for what was chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.cuda.capture import Capture, CUDAGraphs
from engine.cuda.forward import NO_ADAPTERS, PagedForward
from engine.cuda.graphs import Graphs
from engine.cuda.inputs import NO_SLOT, PoolLayout, arrays_of, inputs_of
from engine.cuda.sequence_rows import Numbers, SequenceRows
from engine.cuda.shapes import PassShape
from engine.cuda.staging import staged
from engine.cuda.verifying import verify_on_device
from engine.engine_config import EngineConfig
from engine.kv_pool import KVPool
from engine.kv_reuse import KVReuse
from engine.model import Decoder
from engine.paging import KVPages
from engine.pass_rows import PassRows, verifications
from engine.passes import measured_start, measured_verification
from engine.projections import AdapterRows
from engine.verification import Verification
from kernels.backend import runs_triton
from kernels.paged_attention.dispatch import LEAST_HEAD_DIM


def runs_by_kernels(model: Decoder, config: EngineConfig) -> bool:
    """Whether passes of this model go to `KernelPasses`; batch-invariant ones and odd heads have torch's operations."""
    head_dim = model.config.head_dim
    fits = head_dim >= LEAST_HEAD_DIM and head_dim & (head_dim - 1) == 0
    return fits and not config.batch_invariant and runs_triton(model.weights.embedding)


class KernelPasses:
    """`Passes` over a pool that has NUM_SPARE_PAGES, on a card or in Triton's interpreter."""

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        reuse: KVReuse | None,
        most_graphs: int = 0,
        capture: Capture | None = None,
    ) -> None:
        """`most_graphs` are captured as `capture` does, or as CUDA graphs, which only a card has."""
        store = None if reuse is None else reuse.store
        self._model = model
        self._pool = pool
        self._reuse = reuse
        self._layout = PoolLayout.of(pool, model.config.sliding_window, store)
        self._forward = PagedForward(model, pool, store)
        self.graphs: Graphs | None = None
        if capture is None and pool.device.type == "cuda":
            capture = CUDAGraphs()
        if capture is not None and most_graphs:
            self.graphs = Graphs(self._forward, self._layout, pool.device, capture, most_graphs)

    @torch.inference_mode()
    def run(self, all_rows: Sequence[PassRows], pages: KVPages) -> list[Verification | None]:
        """As `Passes.run`."""
        sequences = [each.on_pages(pages) for each in all_rows]
        adapters = AdapterRows.of(
            (each.generation.adapter, rows.num_rows) for each, rows in zip(all_rows, sequences, strict=True)
        )
        found = verifications(all_rows, self.hidden(sequences, adapters, self._record_slots(all_rows)))
        verify_on_device(self._model, [each for each in found if each is not None])
        return found

    @torch.inference_mode()
    def measure(self, num_rows: int) -> None:
        """As `Passes.measure`; what passes like it are going to be is captured first."""
        start = measured_start(num_rows, self._model, self._pool)
        pages = range(-(-(start + num_rows) // self._pool.page_size))
        rows = SequenceRows([0] * num_rows, range(start, start + num_rows), pages)
        verify_on_device(self._model, [measured_verification(self.hidden([rows], at_once=True))])

    def hidden(
        self,
        sequences: Sequence[SequenceRows],
        adapters: AdapterRows = NO_ADAPTERS,
        record_slots: Sequence[int] | Numbers = (),
        *,
        at_once: bool = False,
    ) -> Tensor:
        """The hidden states of all rows, [num_rows, hidden_size], until the next pass."""
        shape = PassShape.of(sequences, self._layout.window)
        if self.graphs is not None and not adapters.ranges:
            graph = self.graphs.find(shape, at_once=at_once)
            if graph is not None:
                return graph(sequences, record_slots)
        tensors = staged(arrays_of(sequences, shape, self._layout, record_slots), self._pool.device)
        return self._forward(inputs_of(tensors, shape, self._layout), adapters)

    def _record_slots(self, all_rows: Sequence[PassRows]) -> Numbers:
        """The span store's slot for each row."""
        if self._reuse is None:
            return np.empty(0, dtype=np.int64)
        kept, slots = self._reuse.reserve(all_rows)
        num_rows = sum(sum(each.group_sizes) for each in all_rows)
        all_slots = np.full(num_rows, NO_SLOT, dtype=np.int64)
        all_slots[kept] = slots
        return all_slots
