"""The model runner by Triton kernels: one copy to the device, launches or a graph, one copy back."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from engine.decoder import Decoder, LayerOps, scale_queries
from engine.device import use_device
from engine.engine_config import EngineConfig
from engine.errors import EngineError
from engine.kv_cache import KVPages
from engine.kv_pool import KVPool, page_bytes
from engine.layers import NO_ADAPTERS, AdapterRows, Experts, LayerWeights
from engine.reuse.span_store import SpanStore
from engine.runner.cuda_graphs import (
    NO_SLOT,
    NUM_SPARE_PAGES,
    Capture,
    CUDAGraphs,
    Graphs,
    InputBatch,
    PoolLayout,
    StepShape,
    build_arrays,
    build_inputs,
)
from engine.runner.device_choices import DeviceChoices
from engine.runner.kv_reuse import KVReuse, build_kv_reuse
from engine.runner.staged_arrays import stage_arrays
from engine.runner.step_rows import Numbers, PagedRows, StepRows, Verification, build_verifications
from engine.runner.torch_runner import ModelRunner, TorchRunner, Wait, build_measured_rows
from engine.sampling import Sampler
from engine.types import GenerationRequest
from kernels.op import runs_triton, waits_for_card
from kernels.paged_attention import can_split_head, run_paged_attention
from kernels.rope import apply_rope
from kernels.rope_write import Record, rope_write
from kernels.swiglu import swiglu
from kernels.winners import use_folder

log = logging.getLogger(__name__)


class PagedOps(LayerOps):
    """The operations of a pass whose keys and values are in a pool's pages on the device."""

    def __init__(self, model: Decoder, pool: KVPool, store: SpanStore | None, inputs: InputBatch) -> None:
        """`store` also takes what the pass computes, in the record slots of its inputs."""
        super().__init__(model.config, inputs.adapters)
        self._pool = pool
        self._store = store
        self._inputs = inputs
        self._rotations = model.get_rotations(inputs.positions)
        self._is_int8 = model.weights.kv_format.is_int8

    def attend(self, index: int, layer: LayerWeights, heads: Tensor) -> Tensor:
        """As `LayerOps.attend`."""
        config, inputs, spec = self.config, self._inputs, self.config.layers[index]
        kv_layer, rotation = config.get_kv_layer(index), self._rotations[spec.rope]
        keys, values = self._pool.keys[kv_layer], self._pool.values[kv_layer] if config.has_values else None
        self.norm_heads(layer, heads)
        if config.computes_kv(index):
            record = None
            if self._store is not None and inputs.record_slots is not None:
                stored_values = self._store.values[kv_layer] if config.has_values else None
                record = Record(inputs.record_slots, self._store.keys[kv_layer], stored_values)
            biases = (layer.key_bias, layer.key_scales) if self._is_int8 else (None, None)
            query = rope_write(heads, *rotation, inputs.slots, keys, values, config.num_heads, record, *biases)
        else:
            query = apply_rope(heads, *rotation)
            if self._is_int8 and layer.key_scales is not None:
                query = scale_queries(query, layer.key_scales)
        scoring = spec.window, config.attention_scale, config.attention_cap
        return run_paged_attention(query, keys, values, inputs.batch, *scoring)


def can_run_kernels(model: Decoder, config: EngineConfig) -> bool:
    """Return whether `KernelRunner` can run this model; batch-invariant passes and odd head sizes use
    torch operations.
    """
    fits = can_split_head(model.config.head_dim)
    return fits and not config.batch_invariant and runs_triton(model.weights.embedding)


class KernelRunner:
    """The `ModelRunner` over a pool with NUM_SPARE_PAGES, on a card or in Triton's interpreter."""

    launches_ahead = True

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
        self._layout = PoolLayout.from_pool(pool, model.config, store)
        self._store = store
        self.graphs: Graphs | None = None
        if capture is None and pool.device.type == "cuda":
            capture = CUDAGraphs()
        if capture is not None and most_graphs:
            self.graphs = Graphs(self._forward, self._layout, pool.device, capture, most_graphs)

    @torch.inference_mode()
    def launch(self, all_rows: Sequence[StepRows], pages: KVPages) -> Wait:
        """As `ModelRunner.launch`."""
        sequences = [each.to_paged_rows(pages) for each in all_rows]
        adapters = AdapterRows.from_sequences(pair for each in all_rows for pair in each.adapters)
        found = build_verifications(all_rows, self.compute_hidden(sequences, adapters, self._record_slots(all_rows)))
        choices = DeviceChoices(self._model, [each for each in found if each is not None])

        @torch.inference_mode()
        def wait() -> list[Verification | None]:
            choices.wait()
            return found

        return wait

    @torch.inference_mode()
    def measure(self, num_rows: int) -> None:
        """As `ModelRunner.measure`; the graph that later passes of this shape use is captured first."""
        rows = build_measured_rows(num_rows, self._model, self._pool)
        hidden, sampler = self.compute_hidden([rows], at_once=True), Sampler(GenerationRequest([0], 1))
        DeviceChoices(self._model, [Verification(hidden, sampler, [], [0] * (num_rows - 1))]).wait()

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
        if self.graphs is not None:
            graph = self.graphs.find(shape, adapters.adapters, at_once=at_once)
            if graph is not None:
                return graph(sequences, record_slots, adapters)
        return self._forward(self._stage(sequences, shape, adapters, record_slots))

    def build_pass(self, sequences: Sequence[PagedRows]) -> tuple[Tensor, LayerOps]:
        """As `RowsRunner.build_pass`."""
        inputs = self._stage(sequences, StepShape.from_sequences(sequences), NO_ADAPTERS, ())
        return inputs.token_ids, PagedOps(self._model, self._pool, self._store, inputs)

    def _stage(
        self,
        sequences: Sequence[PagedRows],
        shape: StepShape,
        adapters: AdapterRows,
        record_slots: Sequence[int] | Numbers,
    ) -> InputBatch:
        tensors = stage_arrays(build_arrays(sequences, shape, self._layout, record_slots), self._pool.device)
        most_keys = max(each.seq_len for each in sequences)
        return replace(build_inputs(tensors, shape, self._layout, most_keys), adapters=adapters)

    def _forward(self, inputs: InputBatch) -> Tensor:
        return self._model.run_layers(inputs.token_ids, PagedOps(self._model, self._pool, self._store, inputs))

    def _record_slots(self, all_rows: Sequence[StepRows]) -> Numbers:
        """Return the span store's slot for each row."""
        if self._reuse is None:
            return np.empty(0, dtype=np.int64)
        kept, slots = self._reuse.reserve(all_rows)
        all_slots = np.full(sum(each.num_rows for each in all_rows), NO_SLOT, dtype=np.int64)
        all_slots[kept] = slots
        return all_slots


def build_runner(model: Decoder, config: EngineConfig) -> tuple[KVPool, KVReuse | None, ModelRunner]:
    """Allocate the KV pool and build the KV reuse (if configured) and the model runner over it.

    Raises EngineError if there is no memory for them, ValueError if the pool would hold no page.
    """
    device, dtype = model.weights.device, model.weights.kv_dtype
    by_kernels = can_run_kernels(model, config)
    if by_kernels and config.kernels_dir is not None:
        use_folder(config.kernels_dir)
        os.environ.setdefault("TRITON_CACHE_DIR", str(config.kernels_dir / "triton"))
    if by_kernels and device.type == "cuda":  # sums of parts of a product in bfloat16 make near ties of clear choices
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    if by_kernels and device.type == "cuda" and config.kv_share is not None and config.kv_bytes is None:
        with use_device(device):
            config = replace(config, kv_bytes=_choose_kv_bytes(model, config, config.kv_share))
    num_pages = config.num_pages(page_bytes(model.config, config.page_size, dtype))
    num_spare = NUM_SPARE_PAGES if by_kernels else 0
    pool = KVPool(model.config, num_pages, config.page_size, device, dtype, num_spare)
    reuse = build_kv_reuse(config, model, pool)
    if not by_kernels:
        return pool, reuse, TorchRunner(model, pool, reuse)
    return pool, reuse, KernelRunner(model, pool, reuse, config.most_graphs if _can_capture(model) else 0)


def _can_capture(model: Decoder) -> bool:
    """Return whether a pass waits for nobody, found by trying: experts may (see `GroupedExperts`)."""
    weights = model.weights
    experts = [each.feed_forward for each in weights.layers if isinstance(each.feed_forward, Experts)]
    if not experts or weights.device.type != "cuda":
        return True
    rows = torch.zeros(2, model.config.hidden_size, dtype=weights.dtype, device=weights.device)
    with torch.inference_mode(), use_device(weights.device):
        return not waits_for_card(partial(experts[0], rows, swiglu))


NUM_PASS_RESERVES = 2
"""Memory of the largest pass that is left beside the KV: for the pass, and for what graphs keep."""


def _choose_kv_bytes(model: Decoder, config: EngineConfig, share: float) -> int:
    """Run the largest pass of the scheduler once, and return the bytes that a card has for KV beside it.

    Raises EngineError if that is less than a page.
    """
    num_rows = max(config.scheduler.max_batched_tokens, config.scheduler.max_drafted + 1)
    num_rows = min(num_rows, config.max_seq_len, model.config.max_positions)
    device, dtype = model.weights.device, model.weights.kv_dtype
    pool = KVPool(model.config, -(-num_rows // config.page_size), config.page_size, device, dtype, NUM_SPARE_PAGES)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    KernelRunner(model, pool, None).measure(num_rows)
    pass_bytes = torch.cuda.max_memory_allocated(device) - before
    del pool
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    kv_bytes = int(share * free_bytes) - NUM_PASS_RESERVES * pass_bytes
    if kv_bytes < page_bytes(model.config, config.page_size, dtype):
        raise EngineError(
            f"the card has {free_bytes / 1e9:.1f} GB left beside the weights, and a pass over {num_rows} tokens takes "
            f"{pass_bytes / 1e9:.1f} GB: there is no memory for KV; take a smaller model, or --quantize fp8"
        )
    log.info(
        "the card has %.1f GB left; a pass over %d tokens takes %.2f GB, and KV gets %.1f GB",
        free_bytes / 1e9, num_rows, pass_bytes / 1e9, kv_bytes / 1e9,
    )  # fmt: skip
    return kv_bytes
