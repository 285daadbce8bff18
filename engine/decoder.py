"""The decoder's forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch, KVRecorder, KVStore
from engine.kv_cache import CacheView, KVCache
from engine.projections import AdapterRows, DecoderWeights, LayerWeights, Projection, ProjectionKind, Quantization
from engine.weights.fingerprint import fingerprint
from engine.weights.parameters import Parameters
from kernels.accept import Likeliest, likeliest
from kernels.attention import Scratch, causal_attention, scattered_attention, single_queries
from kernels.rms_norm import rms_norm
from kernels.rope import apply_rope, rope_table
from kernels.swiglu import swiglu

LM_HEAD_ROWS = 64
"""Logits are made for this many positions at a time: 64 rows of a 150,000-word vocabulary are 19 MB in bf16."""


@dataclass(frozen=True, slots=True)
class Pass:
    """What every layer needs to know of one forward pass."""

    ranges: tuple[tuple[int, int], ...]
    cos: Tensor  # [num_tokens, head_dim // 2]
    sin: Tensor  # [num_tokens, head_dim // 2]
    kv: KVStore
    adapters: AdapterRows
    recorder: KVRecorder | None = None
    scattered: Mapping[int, Tensor] = field(default_factory=dict)  # positions of sequences whose rows are no neighbours

    def project(self, kind: ProjectionKind, index: int, projection: Projection, x: Tensor) -> Tensor:
        """One linear map of layer `index`, with what the adapters add to the rows of theirs."""
        out = projection(x)
        self.adapters.apply(kind, index, x, out)
        return out


class Decoder:
    """A pre-norm transformer decoder (Llama, Mistral, Qwen2, Qwen3): grouped-query attention, RoPE, SwiGLU.

    Not thread-safe: passes share scratch memory.
    """

    def __init__(self, parameters: Parameters, quantize: Quantization | None = None) -> None:
        """Takes the layers out of `parameters`; raises WeightsError where there is no memory to pack them."""
        self.fingerprint = fingerprint(parameters, quantize)
        self.weights = DecoderWeights.from_parameters(parameters, quantize)
        self.config = config = self.weights.config
        self._cos, self._sin = rope_table(
            config.max_positions,
            config.head_dim,
            config.rope_theta,
            self.weights.device,
            config.rope_divisors,
        )
        self._scratch = Scratch()

    def new_caches(self, max_batch_size: int, max_seq_len: int) -> list[KVCache]:
        """Contiguous KV caches for this model, one a layer, for `forward`."""
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
        start, num_tokens = caches[0].lengths[slot], len(token_ids)
        positions = torch.arange(start, start + num_tokens, device=token_ids.device)
        batch = Batch(token_ids, positions, ((0, num_tokens),), AdapterRows(()))
        return self.forward_batch(batch, CacheView(caches, slot, self.config.sliding_window, num_tokens))

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, kv: KVStore) -> Tensor:
        """Run the next tokens of several sequences at once and store their keys and values in `kv`.

        Returns the hidden states behind the last norm, [num_tokens, hidden_size].
        """
        cos, sin = self.rotations(batch.positions)
        scattered = {at: batch.positions[slice(*batch.ranges[at])] for at in batch.scattered}
        pass_ = Pass(batch.ranges, cos, sin, kv, batch.adapters, batch.recorder, scattered)
        hidden = F.embedding(batch.token_ids, self.weights.embedding)
        for index, layer in enumerate(self.weights.layers):
            hidden += self._attend(index, layer, hidden, pass_)
            hidden += self._feed_forward(index, layer, hidden, pass_)
        return rms_norm(hidden, self.weights.final_norm, self.config.rms_norm_eps)

    def rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of RoPE at these positions, float32 [num_positions, head_dim // 2] each."""
        return self._cos[positions], self._sin[positions]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, [num_tokens, vocab_size], for the given hidden states."""
        return self.weights.lm_head(hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> Likeliest:
        """The likeliest next token for each of the given hidden states, whose logits are not kept."""
        return likeliest(hidden, self.weights.lm_head_tiles)

    def _attend(self, index: int, layer: LayerWeights, hidden: Tensor, pass_: Pass) -> Tensor:
        query, keys, values, keys_before_rope = self._heads(index, layer, hidden, pass_)
        pass_.kv.write(index, keys, values)
        if pass_.recorder is not None:
            pass_.recorder.write(index, keys_before_rope, values)
        attended = self._look_back(index, query, pass_)
        return pass_.project("attention_out", index, layer.attention_out, attended.view(hidden.shape[0], -1))

    def _heads(
        self, index: int, layer: LayerWeights, hidden: Tensor, pass_: Pass
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys, rotated to their positions, values, and the keys before: [num_tokens, heads, head_dim]."""
        config, num_tokens = self.config, hidden.shape[0]
        num_heads, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        normed = rms_norm(hidden, layer.attention_norm, config.rms_norm_eps)
        fused = pass_.project("qkv", index, layer.qkv, normed)
        heads = fused.view(num_tokens, num_rotated + config.num_kv_heads, config.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            heads[:, :num_heads] = rms_norm(heads[:, :num_heads], layer.query_norm, config.rms_norm_eps)
            keys = heads[:, num_heads:num_rotated]
            heads[:, num_heads:num_rotated] = rms_norm(keys, layer.key_norm, config.rms_norm_eps)
        rotated = apply_rope(heads[:, :num_rotated], pass_.cos, pass_.sin)
        keys = heads[:, num_heads:num_rotated]
        return rotated[:, :num_heads], rotated[:, num_heads:], heads[:, num_rotated:], keys

    def _look_back(self, index: int, query: Tensor, pass_: Pass) -> Tensor:
        """What each token [num_heads, head_dim] finds in its own sequence."""
        kv, window = pass_.kv, self.config.sliding_window
        if len(pass_.ranges) == 1 and not pass_.scattered:
            return causal_attention(query, kv.runs(index, 0), self._scratch, window)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if kv.singles:
            rows = [pass_.ranges[at][0] for at in kv.singles]
            out[rows] = single_queries(query[rows], *kv.gather(index))
        for at, (first, last) in enumerate(pass_.ranges):
            if at in pass_.scattered:
                own, positions = query[first:last], pass_.scattered[at]
                out[first:last] = scattered_attention(own, positions, kv.runs(index, at), self._scratch)
            elif at not in kv.singles:
                out[first:last] = causal_attention(query[first:last], kv.runs(index, at), self._scratch, window)
        return out

    def _feed_forward(self, index: int, layer: LayerWeights, hidden: Tensor, pass_: Pass) -> Tensor:
        normed = rms_norm(hidden, layer.ffn_norm, self.config.rms_norm_eps)
        activated = swiglu(pass_.project("gate_up", index, layer.gate_up, normed))
        return pass_.project("down", index, layer.down, activated)
