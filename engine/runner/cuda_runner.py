"""The model runner by Triton kernels: one copy to the device, launches or a graph, one copy back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from engine.decoder import LM_HEAD_ROWS, Decoder, LayerOps
from engine.engine_config import EngineConfig
from engine.kv_cache import KVPages
from engine.kv_pool import KVPool
from engine.layers import AdapterRows, LayerWeights
from engine.reuse.span_store import SpanStore
from engine.runner.cuda_graphs import (
    NO_SLOT,
    Arrays,
    Capture,
    CUDAGraphs,
    Graphs,
    InputBatch,
    PoolLayout,
    StepShape,
    build_arrays,
    build_inputs,
    stage_arrays,
)
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import Numbers, PagedRows, StepRows, Verification, build_verifications, verify
from engine.runner.torch_runner import find_measure_start
from engine.sampling import Sampler, hide_unlikely, is_near_tie, uniform
from engine.types import GenerationRequest
from kernels.accept import Draws, TopTokens, accept
from kernels.op import runs_triton, upload
from kernels.paged_attention import MIN_HEAD_DIM, run_paged_attention
from kernels.rms_norm import rms_norm
from kernels.rope_write import Record, rope_write

NO_ADAPTERS = AdapterRows(())


class PagedOps(LayerOps):
    """The operations of a pass whose keys and values are in a pool's pages on the device."""

    def __init__(
        self, model: Decoder, pool: KVPool, store: SpanStore | None, inputs: InputBatch, adapters: AdapterRows
    ) -> None:
        """`store` also takes what the pass computes, in the record slots of its inputs."""
        super().__init__(model.config, adapters)
        self._pool = pool
        self._store = store
        self._inputs = inputs
        self._cos, self._sin = model.get_rotations(inputs.positions)

    def attend(self, index: int, layer: LayerWeights, heads: Tensor) -> Tensor:
        """As `LayerOps.attend`."""
        config, inputs = self.config, self._inputs
        keys, values = self._pool.keys[index], self._pool.values[index]
        if layer.head_norms is not None:
            rotated = heads[:, : config.num_heads + config.num_kv_heads]
            rms_norm(rotated, layer.head_norms, config.rms_norm_eps, out=rotated)
        record = None
        if self._store is not None and inputs.record_slots is not None:
            record = Record(inputs.record_slots, self._store.keys[index], self._store.values[index])
        query = rope_write(heads, self._cos, self._sin, inputs.slots, keys, values, config.num_heads, record)
        return run_paged_attention(query, keys, values, inputs.batch, config.sliding_window)


NO_TOKEN = -1
"""Stands for the draft's token after its last row."""


def verify_on_device(model: Decoder, verifications: Sequence[Verification]) -> None:
    """As `verify`, with one pass of the LM head and one wait.

    On a card, scoring the rows after a rejection costs less than asking where it is. Requests with log-probabilities,
    logit bias or a penalty are verified as on a CPU, their logits copied to the host row by row.
    """
    plain = [(each, rows) for each in verifications if not each.sampler.needs_rows and (rows := each.next_rows)]
    if plain:
        _choose_on_device(model, plain)
    verify(model, verifications)  # what is left


def _choose_on_device(model: Decoder, plain: Sequence[tuple[Verification, range]]) -> None:
    """Choose for all verifications of one pass from these of its rows, whose tokens are not forced."""
    hidden = plain[0][0].hidden
    rows = [row for _, own in plain for row in own]
    borders = [0, *accumulate(len(own) for _, own in plain)]
    draft = [token_id for each, own in plain for token_id in (*each.draft[own.start - each.first_row :], NO_TOKEN)]
    arrays: Arrays = {
        "rows": np.array(rows, dtype=np.int64),
        "draft": np.array(draft, dtype=np.int64),
        "row_starts": np.array(borders, dtype=np.int32),
    }
    requests = [each.sampler.request for each, own in plain for _ in own]
    samples = any(each.temperature > 0.0 for each in requests)
    if samples:
        positions = [len(each.output_ids) + row - each.first_row for each, own in plain for row in own]
        numbers = [uniform(each.seed, at) for each, at in zip(requests, positions, strict=True)]
        arrays["temperatures"] = np.array([each.temperature for each in requests], dtype=np.float32)
        arrays["numbers"] = np.array(numbers, dtype=np.float64)
    staged = stage_arrays(arrays, hidden.device)
    logits = model.logits(hidden if len(rows) == len(hidden) else hidden.index_select(0, staged["rows"]))
    draws = Draws(staged["temperatures"], staged["numbers"]) if samples else None
    for first in range(0, len(logits), LM_HEAD_ROWS) if samples else ():
        _hide_unlikely_rows(logits[first : first + LM_HEAD_ROWS], requests[first : first + LM_HEAD_ROWS])
    accepted = accept(logits, staged["draft"], staged["row_starts"], draws).to_host()
    top = accepted.top_tokens
    found = TopTokens(accepted.token_ids, top.largest, top.second)
    ids, largest, ties = found.token_ids.tolist(), top.largest.tolist(), is_near_tie(found, hidden.dtype).tolist()
    for (each, own), first, count in zip(plain, borders[:-1], accepted.num_accepted.tolist(), strict=True):
        taken = slice(first, first + min(count + 1, len(own)))
        each.accept(ids[taken], largest[taken], ties[taken])


def _hide_unlikely_rows(logits: Tensor, requests: Sequence[GenerationRequest]) -> None:
    """Hide what a request's top-k, top-p and min-p leave out, in the rows that have any of them."""
    filtered = [at for at, each in enumerate(requests) if each.temperature > 0.0 and each.is_filtered]
    if len(filtered) == len(requests):
        hide_unlikely(logits, requests)
    elif filtered:
        rows = upload(torch.tensor(filtered), logits.device)
        kept = logits[rows]
        hide_unlikely(kept, [requests[at] for at in filtered])
        logits[rows] = kept


def can_run_kernels(model: Decoder, config: EngineConfig) -> bool:
    """Return whether `KernelRunner` can run this model; batch-invariant passes and odd head sizes use
    torch operations.
    """
    head_dim = model.config.head_dim
    fits = head_dim >= MIN_HEAD_DIM and head_dim & (head_dim - 1) == 0
    return fits and not config.batch_invariant and runs_triton(model.weights.embedding)


class KernelRunner:
    """The `ModelRunner` over a pool with NUM_SPARE_PAGES, on a card or in Triton's interpreter."""

    def __init__(
        self,
        model: Decoder,
        pool: KVPool,
        reuse: KVReuse | None,
        most_graphs: int = 0,
        capture: Capture | None = None,
    ) -> None:
        """Capture up to `most_graphs` graphs with `capture`, or as CUDA graphs, which only a card has."""
        store = None if reuse is None else reuse.store
        self._model = model
        self._pool = pool
        self._reuse = reuse
        self._layout = PoolLayout.from_pool(pool, model.config.sliding_window, store)
        self._store = store
        self.graphs: Graphs | None = None
        if capture is None and pool.device.type == "cuda":
            capture = CUDAGraphs()
        if capture is not None and most_graphs:
            self.graphs = Graphs(self._forward, self._layout, pool.device, capture, most_graphs)

    @torch.inference_mode()
    def run(self, all_rows: Sequence[StepRows], pages: KVPages) -> list[Verification | None]:
        """As `ModelRunner.run`."""
        sequences = [each.to_paged_rows(pages) for each in all_rows]
        adapters = AdapterRows.from_sequences(
            (each.state.adapter, rows.num_rows) for each, rows in zip(all_rows, sequences, strict=True)
        )
        found = build_verifications(all_rows, self.compute_hidden(sequences, adapters, self._record_slots(all_rows)))
        verify_on_device(self._model, [each for each in found if each is not None])
        return found

    @torch.inference_mode()
    def measure(self, num_rows: int) -> None:
        """As `ModelRunner.measure`; the graph that later passes of this shape use is captured first."""
        start = find_measure_start(num_rows, self._model, self._pool)
        pages = range(-(-(start + num_rows) // self._pool.page_size))
        rows = PagedRows([0] * num_rows, range(start, start + num_rows), pages)
        hidden, sampler = self.compute_hidden([rows], at_once=True), Sampler(GenerationRequest([0], 1))
        verify_on_device(self._model, [Verification(hidden, sampler, [], [0] * (num_rows - 1))])

    def compute_hidden(
        self,
        sequences: Sequence[PagedRows],
        adapters: AdapterRows = NO_ADAPTERS,
        record_slots: Sequence[int] | Numbers = (),
        *,
        at_once: bool = False,
    ) -> Tensor:
        """Return the hidden states of all rows, [num_rows, hidden_size], which are valid until the next pass."""
        shape = StepShape.from_sequences(sequences)
        if self.graphs is not None and not adapters.ranges:
            graph = self.graphs.find(shape, at_once=at_once)
            if graph is not None:
                return graph(sequences, record_slots)
        tensors = stage_arrays(build_arrays(sequences, shape, self._layout, record_slots), self._pool.device)
        return self._forward(build_inputs(tensors, shape, self._layout), adapters)

    def _forward(self, inputs: InputBatch, adapters: AdapterRows = NO_ADAPTERS) -> Tensor:
        return self._model.run_layers(
            inputs.token_ids, PagedOps(self._model, self._pool, self._store, inputs, adapters)
        )

    def _record_slots(self, all_rows: Sequence[StepRows]) -> Numbers:
        """Return the span store's slot for each row."""
        if self._reuse is None:
            return np.empty(0, dtype=np.int64)
        kept, slots = self._reuse.reserve(all_rows)
        all_slots = np.full(sum(each.num_rows for each in all_rows), NO_SLOT, dtype=np.int64)
        all_slots[kept] = slots
        return all_slots
