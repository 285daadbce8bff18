"""The decoder: one forward pass for every supported family, driven by its config."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kv_cache import KVCache
from engine.weights.parameters import LayerParameters, Parameters
from kernels.attention import causal_attention, causal_mask
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope, rope_table
from kernels.swiglu import swiglu

LM_HEAD_ROWS = 64
"""Logits are made for this many positions at a time: 64 rows of a 150,000-word vocabulary are 19 MB in bf16."""


class Decoder:
    """A pre-norm transformer decoder (Llama, Qwen2): grouped-query attention, RoPE, SwiGLU."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.config = parameters.config
        config = parameters.config
        self._cos, self._sin = rope_table(
            config.max_positions, config.head_dim, config.rope_theta, parameters.embedding.device
        )

    def new_caches(self, max_batch_size: int, max_seq_len: int) -> list[KVCache]:
        """KV caches for this model, one a layer."""
        config, weights = self.config, self.parameters.embedding
        return KVCache.from_model_config(
            max_batch_size,
            max_seq_len,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            weights.device,
            weights.dtype,
        )

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, caches: list[KVCache], slot: int = 0) -> Tensor:
        """Run the next tokens of one sequence, int64 [num_tokens], and store their keys and values.

        Returns the hidden states behind the last norm, [num_tokens, hidden_size].
        """
        start = caches[0].lengths[slot]
        end = start + len(token_ids)
        cos, sin = self._cos[start:end], self._sin[start:end]
        mask = causal_mask(len(token_ids), end, token_ids.device) if len(token_ids) > 1 else None
        hidden = F.embedding(token_ids, self.parameters.embedding)
        for layer, cache in zip(self.parameters.layers, caches, strict=True):
            hidden = hidden + self._attend(layer, hidden, cos, sin, mask, cache, slot)
            hidden = hidden + self._feed_forward(layer, hidden)
        return rms_norm(hidden, self.parameters.final_norm, self.config.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, [num_tokens, vocab_size], for the given hidden states."""
        return F.linear(hidden, self.parameters.lm_head)

    def _attend(
        self,
        layer: LayerParameters,
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        slot: int,
    ) -> Tensor:
        config, num_tokens = self.config, hidden.shape[0]
        normed = rms_norm(hidden, layer.attention_norm, config.rms_norm_eps)
        fused = F.linear(normed, layer.qkv, layer.qkv_bias)
        query, key, value = (
            part.view(num_tokens, -1, config.head_dim) for part in torch.split(fused, list(config.qkv_sizes), dim=-1)
        )
        keys, values = cache.append(slot, apply_rope(key, cos, sin), value)
        attended = causal_attention(apply_rope(query, cos, sin), keys, values, mask)
        return F.linear(attended.reshape(num_tokens, -1), layer.attention_out)

    def _feed_forward(self, layer: LayerParameters, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, layer.ffn_norm, self.config.rms_norm_eps)
        return F.linear(swiglu(F.linear(normed, layer.gate_up)), layer.down)
