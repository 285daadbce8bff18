"""The decoder: one forward pass for every supported family, driven by its config."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kv_cache import KVCache
from engine.projections import DecoderWeights, LayerWeights
from engine.weights.parameters import Parameters
from kernels.attention import causal_attention, causal_mask
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope, rope_table
from kernels.swiglu import swiglu

LM_HEAD_ROWS = 64
"""Logits are made for this many positions at a time: 64 rows of a 150,000-word vocabulary are 19 MB in bf16."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What every layer needs to know of the tokens of one forward pass."""

    slot: int
    cos: Tensor  # [num_tokens, head_dim // 2]
    sin: Tensor  # [num_tokens, head_dim // 2]
    first_key: int  # the earliest position that any of the tokens sees
    mask: Tensor | None  # bool [num_tokens, positions from first_key on], or None for a single token, which sees all


class Decoder:
    """A pre-norm transformer decoder (Llama, Mistral, Qwen2, Qwen3): grouped-query attention, RoPE, SwiGLU."""

    def __init__(self, parameters: Parameters) -> None:
        """Takes the layers out of `parameters`; raises WeightsError where there is no memory to pack them."""
        self.weights = DecoderWeights.from_parameters(parameters)
        self.config = config = self.weights.config
        self._cos, self._sin = rope_table(
            config.max_positions,
            config.head_dim,
            config.rope_theta,
            self.weights.device,
            config.rope_divisors,
        )

    def new_caches(self, max_batch_size: int, max_seq_len: int) -> list[KVCache]:
        """KV caches for this model, one a layer."""
        config, weights = self.config, self.weights
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
        tokens = self._place(slot, caches[0].lengths[slot], len(token_ids))
        hidden = F.embedding(token_ids, self.weights.embedding)
        for layer, cache in zip(self.weights.layers, caches, strict=True):
            hidden = hidden + self._attend(layer, hidden, tokens, cache)
            hidden = hidden + self._feed_forward(layer, hidden)
        return rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, [num_tokens, vocab_size], for the given hidden states."""
        return self.weights.lm_head(hidden)

    def _place(self, slot: int, start: int, num_tokens: int) -> _Tokens:
        """Place the tokens [start, start + num_tokens) of a sequence."""
        end, window = start + num_tokens, self.config.sliding_window
        first_key = 0 if window is None else max(0, start + 1 - window)
        mask = causal_mask(num_tokens, end - first_key, self._cos.device, window) if num_tokens > 1 else None
        return _Tokens(slot, self._cos[start:end], self._sin[start:end], first_key, mask)

    def _attend(self, layer: LayerWeights, hidden: Tensor, tokens: _Tokens, cache: KVCache) -> Tensor:
        config, num_tokens = self.config, hidden.shape[0]
        normed = rms_norm(hidden, layer.attention_norm, config.rms_norm_eps)
        fused = layer.qkv(normed)
        query, key, value = (
            part.view(num_tokens, -1, config.head_dim) for part in torch.split(fused, list(config.qkv_sizes), dim=-1)
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, layer.query_norm, config.rms_norm_eps)
            key = rms_norm(key, layer.key_norm, config.rms_norm_eps)
        keys, values = cache.append(tokens.slot, apply_rope(key, tokens.cos, tokens.sin), value)
        seen = slice(tokens.first_key, None)
        attended = causal_attention(
            apply_rope(query, tokens.cos, tokens.sin), keys[:, seen], values[:, seen], tokens.mask
        )
        return layer.attention_out(attended.reshape(num_tokens, -1))

    def _feed_forward(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, layer.ffn_norm, self.config.rms_norm_eps)
        return layer.down(swiglu(layer.gate_up(normed)))
