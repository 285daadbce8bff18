"""A model runner by Triton kernels: one copy to the device, launches or a graph, one copy back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import Decoder
from engine.engine_config import EngineConfig
from engine.kv_cache import KVPages
from engine.kv_pool import KVPool
from engine.layers import AdapterRows, LayerWeights, Projection, ProjectionKind
from engine.reuse.span_store import SpanStore
from engine.runner.cuda_graphs import (
    NO_SLOT,
    Capture,
    CUDAGraphs,
    Graphs,
    PassInputs,
    PassShape,
    PoolLayout,
    arrays_of,
    inputs_of,
    staged,
)
from engine.runner.kv_reuse import KVReuse
from engine.runner.step_rows import Numbers, PassRows, SequenceRows, verifications
from engine.runner.torch_runner import measured_start, measured_verification
from engine.runner.verify import Confirmed, Verification, verify
from kernels.accept import accept
from kernels.op import runs_triton
from kernels.paged_attention import run_paged_attention
from kernels.paged_attention.op import MIN_HEAD_DIM
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_write import Record, rope_write
from kernels.swiglu import swiglu

NO_ADAPTERS = AdapterRows(())


class PagedForward:
    """`Decoder.forward_batch` where keys and values lie in a pool's pages on the device."""

    def __init__(self, decoder: Decoder, pool: KVPool, store: SpanStore | None = None) -> None:
        """`store` takes what a pass computes, too, where its inputs say where to."""
        self._decoder = decoder
        self._pool = pool
        self._store = store
        self._head_norms = [_head_norms(decoder, layer) for layer in decoder.weights.layers]

    @torch.inference_mode()
    def __call__(self, inputs: PassInputs, adapters: AdapterRows = NO_ADAPTERS) -> Tensor:
        """The hidden states behind the last norm, [num_rows, hidden_size]."""
        weights, eps = self._decoder.weights, self._decoder.config.rms_norm_eps
        cos, sin = self._decoder.rotations(inputs.positions)
        hidden = F.embedding(inputs.token_ids, weights.embedding)
        normed = rms_norm(hidden, weights.layers[0].attention_norm, eps)
        norms = [*(layer.attention_norm for layer in weights.layers[1:]), weights.final_norm]
        for index, (layer, next_norm) in enumerate(zip(weights.layers, norms, strict=True)):
            attended = self._attend(index, layer, normed, cos, sin, inputs, adapters)
            normed = add_rms_norm(hidden, attended, layer.ffn_norm, eps)
            gate_up = _project("gate_up", index, layer.gate_up, normed, adapters)
            down = _project("down", index, layer.down, swiglu(gate_up), adapters)
            normed = add_rms_norm(hidden, down, next_norm, eps)
        return normed

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        normed: Tensor,
        cos: Tensor,
        sin: Tensor,
        inputs: PassInputs,
        adapters: AdapterRows,
    ) -> Tensor:
        config, num_tokens = self._decoder.config, len(normed)
        num_heads, num_normed = config.num_heads, config.num_heads + config.num_kv_heads
        keys, values = self._pool.keys[index], self._pool.values[index]
        fused = _project("qkv", index, layer.qkv, normed, adapters)
        heads = fused.view(num_tokens, num_normed + config.num_kv_heads, config.head_dim)
        norms = self._head_norms[index]
        if norms is not None:
            rms_norm(heads[:, :num_normed], norms, config.rms_norm_eps, out=heads[:, :num_normed])
        record = None
        if self._store is not None and inputs.record_slots is not None:
            record = Record(inputs.record_slots, self._store.keys[index], self._store.values[index])
        query = rope_write(heads, cos, sin, inputs.slots, keys, values, num_heads, record)
        attended = run_paged_attention(query, keys, values, inputs.batch, config.sliding_window)
        return _project("attention_out", index, layer.attention_out, attended.view(num_tokens, -1), adapters)


def _project(kind: ProjectionKind, index: int, projection: Projection, x: Tensor, adapters: AdapterRows) -> Tensor:
    out = projection(x)
    adapters.apply(kind, index, x, out)
    return out


def _head_norms(decoder: Decoder, layer: LayerWeights) -> Tensor | None:
    """The norms of a layer's query and key heads, [num_heads + num_kv_heads, head_dim], so that one call norms all."""
    if layer.query_norm is None or layer.key_norm is None:
        return None
    config = decoder.config
    return torch.cat(
        [layer.query_norm.expand(config.num_heads, -1), layer.key_norm.expand(config.num_kv_heads, -1)]
    ).contiguous()


NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows of one side of a draft, and the draft's token behind each, NO_TOKEN behind the last."""

    hidden: Tensor
    draft: list[int]


def verify_on_device(model: Decoder, verifications: Sequence[Verification]) -> None:
    """As `engine.runner.verify.verify`, in one pass of the LM head and one wait, where the likeliest tokens suffice.

    On a card the rows behind a departure cost less than to ask where it is. Who asks for more than the likeliest tokens
    gets it as on a CPU.
    """
    plain = [each for each in verifications if len(each.next_rows) and not each.wants_logits]
    if plain:
        found = iter(_chosen(model, [side for each in plain for side in _sides(each)]))
        for each in plain:
            each.take_all(next(found), None if each.branch is None else next(found))
    verify(model, verifications)  # what is left


def _sides(each: Verification) -> list[_Side]:
    """The draft's rows that are not settled, and its branch's."""
    first = len(each.chosen)
    sides = [_Side(each.hidden[first:], [*each.draft[first:], NO_TOKEN])]
    if each.branch is not None:
        sides.append(_Side(each.branch.hidden, [*each.branch.token_ids[1:], NO_TOKEN]))
    return sides


def _chosen(model: Decoder, sides: Sequence[_Side]) -> list[Confirmed]:
    logits = model.logits(torch.cat([each.hidden for each in sides]))
    borders = [0, *accumulate(len(each.hidden) for each in sides)]
    draft = np.array([token_id for each in sides for token_id in each.draft], dtype=np.int64)
    told = staged({"draft": draft, "row_starts": np.array(borders, dtype=np.int32)}, logits.device)
    accepted = accept(logits, told["draft"], told["row_starts"]).to_host()
    likeliest, counts = accepted.top_tokens, accepted.num_accepted.tolist()
    return [
        Confirmed(likeliest.select_rows(first, end), count)
        for (first, end), count in zip(pairwise(borders), counts, strict=True)
    ]


def runs_by_kernels(model: Decoder, config: EngineConfig) -> bool:
    """Whether passes of this model go to `KernelPasses`; batch-invariant ones and odd heads have torch's operations."""
    head_dim = model.config.head_dim
    fits = head_dim >= MIN_HEAD_DIM and head_dim & (head_dim - 1) == 0
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
