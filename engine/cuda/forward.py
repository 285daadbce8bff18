"""The decoder's layers over the pages of a pool, by the kernels: launches alone, none of which waits for another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.cuda.inputs import PassInputs
from engine.kv_pool import KVPool
from engine.model import Decoder
from engine.projections import AdapterRows, LayerWeights, Projection, ProjectionKind
from engine.reuse.store import SpanStore
from kernels.paged_attention import paged_attention
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
        attended = paged_attention(query, keys, values, inputs.batch, config.sliding_window)
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
