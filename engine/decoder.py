"""The decoder's forward pass, its ragged batch and its contiguous KV cache."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import ModelConfig, Rope
from engine.contiguous_cache import CacheView, KVCache
from engine.layers import (
    NO_ADAPTERS,
    AdapterRows,
    DecoderWeights,
    Experts,
    LatentProjections,
    LayerWeights,
    MaskedAdapters,
    Projection,
    ProjectionKind,
    Quantization,
)
from engine.layers.decoder_weights import Store
from engine.precision import Precision, compute_fingerprint
from engine.weights.parameters import Parameters
from kernels.accept import TopTokens, find_top_tokens_by_tile
from kernels.attention import (
    Run,
    RunTable,
    Scratch,
    attend_sequences,
    attention_at_positions,
    can_attend,
    causal_attention,
    decode_attention,
)
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import apply_rope, rope_table
from kernels.swiglu import swiglu


class KVRecorder(Protocol):
    """Records the keys and values that a pass computes, besides the KVStore that it attends to."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Record keys before RoPE and values of all tokens of the batch, [num_tokens, num_kv_heads, head_dim] each."""
        ...


class KVStore(Protocol):
    """The keys and values of one batch's sequences, from earlier passes and from this one.

    `singles` are sequences with one token in the batch that are best attended to together.
    """

    singles: Sequence[int]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values of all tokens of the batch, [num_tokens, num_kv_heads, head_dim] each, or the keys
        alone (`ModelConfig.has_values`).
        """
        ...

    def runs(self, layer: int, index: int) -> Sequence[Run]:
        """Return the keys and values that the tokens of sequence `index` attend to, in order, up to its last token."""
        ...

    def tabulate(
        self, ends: Sequence[int | None], ranges: Sequence[tuple[int, int]], positions: Sequence[int]
    ) -> RunTable:
        """Return the table of all sequences' runs, for one call of our kernel.

        ends: for each sequence the position after its last run; None if its first run is at position 0. ranges: of its
        tokens in the batch. positions: of all tokens.
        """
        ...

    def point_at(self, table: RunTable, layer: int) -> None:
        """Have the table point at this layer's keys and values."""
        ...

    def gather(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return keys and values of all `singles`, padded and side by side, and the bias that hides the padding.

        [num_singles, most_tokens, num_kv_heads, head_dim] twice, and [num_singles, 1, 1, most_tokens], 0 or -inf.
        """
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of several sequences, ragged: those of sequence i are the rows `ranges[i]`, half-open.

    A sequence's positions ascend. Those of the sequences in `scattered` are not neighbours: the tokens between them
    have KV.
    """

    token_ids: Tensor  # int64 [num_tokens]
    positions: Tensor  # int64 [num_tokens]
    ranges: tuple[tuple[int, int], ...]
    adapters: AdapterRows
    scattered: frozenset[int] = frozenset()
    recorder: KVRecorder | None = None

    @classmethod
    def from_chunks(
        cls,
        chunks: Sequence[tuple[int | Sequence[int], Sequence[int]]],
        device: torch.device,
        adapters: AdapterRows = NO_ADAPTERS,
    ) -> Batch:
        """Return the batch of one chunk for each sequence: its positions or the first of them, and its tokens."""
        token_ids = [token_id for _, ids in chunks for token_id in ids]
        by_chunk = [range(at, at + len(ids)) if isinstance(at, int) else at for at, ids in chunks]
        positions = [position for each in by_chunk for position in each]
        borders = accumulate((len(ids) for _, ids in chunks), initial=0)
        return cls(
            torch.tensor(token_ids, dtype=torch.int64, device=device),
            torch.tensor(positions, dtype=torch.int64, device=device),
            tuple(pairwise(borders)),
            adapters,
            frozenset(at for at, each in enumerate(by_chunk) if each[-1] - each[0] >= len(each)),
        )


def find_ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending positions as half-open ranges of neighbours: [3, 4, 8] are [(3, 5), (8, 9)]."""
    if positions[-1] - positions[0] < len(positions):  # so it is for most
        return [(positions[0], positions[-1] + 1)]
    ends = [at for at in range(1, len(positions)) if positions[at] != positions[at - 1] + 1]
    borders = [0, *ends, len(positions)]
    return [(positions[first], positions[end - 1] + 1) for first, end in pairwise(borders)]


LM_HEAD_ROWS = 64
"""Logits are computed for this many positions at a time: 64 rows of a 150,000-word vocabulary are 19 MB in bf16."""


class LayerOps:
    """The operations that the layers of one forward pass use; `Decoder.run_layers` is the loop over the layers.

    A subclass says how keys and values are kept and attended to.
    """

    def __init__(self, config: ModelConfig, adapters: AdapterRows | MaskedAdapters) -> None:
        self.config = config
        self.adapters = adapters

    def project(self, kind: ProjectionKind, index: int, projection: Projection, x: Tensor) -> Tensor:
        """Apply one linear map of layer `index`, and add what the adapters change in their rows."""
        out = projection(x)
        self.adapters.apply(kind, index, x, out)
        return out

    def norm(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        """As `rms_norm`; without a weight there is no norm."""
        return hidden if weight is None else rms_norm(hidden, weight, self.config.rms_norm_eps)

    def add_norm(self, hidden: Tensor, delta: Tensor, delta_weight: Tensor | None, weight: Tensor | None) -> Tensor:
        """Add the norm of `delta` to `hidden` in place, and return the norm of the sum. No weight is no norm."""
        delta = self.norm(delta, delta_weight)
        return hidden.add_(delta) if weight is None else add_rms_norm(hidden, delta, weight, self.config.rms_norm_eps)

    def activate(self, gate_up: Tensor) -> Tensor:
        """As `swiglu`."""
        return swiglu(gate_up, self.config.activation)

    def feed_forward(self, index: int, layer: LayerWeights, x: Tensor) -> Tensor:
        """Return the result of the feed-forward part of layer `index`."""
        part = layer.feed_forward
        if isinstance(part, Experts):
            return part(x, self.activate)
        return self.project("down", index, part.down, self.activate(self.project("gate_up", index, part.gate_up, x)))

    def make_heads(self, latent: LatentProjections, projected: Tensor) -> Tensor:
        """As `LatentProjections.make_heads`."""
        return latent.make_heads(projected)

    def make_values(self, latent: LatentProjections, attended: Tensor) -> Tensor:
        """As `LatentProjections.make_values`."""
        return latent.make_values(attended)

    def norm_heads(self, layer: LayerWeights, heads: Tensor) -> None:
        """Apply a layer's norms of queries and keys, if it has any, to [num_tokens, heads, head_dim] in place."""
        if self.config.qk_norm == "head":
            (weights,) = layer.head_norms
            normed = heads[:, : len(weights)]
            rms_norm(normed, weights, self.config.rms_norm_eps, out=normed)
            return
        first = 0
        for weights in layer.head_norms:
            end = first + len(weights) // self.config.head_dim
            normed, first = heads[:, first:end].view(len(heads), -1), end
            rms_norm(normed, weights, self.config.rms_norm_eps, out=normed)

    def attend(self, index: int, layer: LayerWeights, heads: Tensor) -> Tensor:
        """Keep the keys and values of layer `index`, and return what each token's queries find among those so far.

        heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], before their norm and RoPE; they may be changed. A
        layer that attends to the keys and values of an earlier one has only queries, and with latent attention values
        are the keys. Returns [num_tokens, num_heads, head_dim].
        """
        raise NotImplementedError


def scale_queries(query: Tensor, key_scales: Tensor) -> Tensor:
    """Multiply queries, [num_tokens, num_heads, head_dim], by what keys in int8 are divided by, [num_kv_heads,
    head_dim]: powers of two.
    """
    return query * key_scales.repeat_interleave(query.shape[1] // len(key_scales), dim=0).to(query.dtype)


class StoreOps(LayerOps):
    """The operations of a pass whose keys and values are in a `KVStore`."""

    def __init__(self, decoder: Decoder, batch: Batch, kv: KVStore, scratch: Scratch) -> None:
        super().__init__(decoder.config, batch.adapters)
        self.batch = batch
        self.kv = kv
        self.rotations = decoder.get_rotations(batch.positions)
        self._scratch = scratch
        self.kv_format = decoder.weights.kv_format
        self._has_kernel = decoder.weights.device.type == "cpu" and can_attend(
            decoder.weights.dtype, self.kv_format.dtype, decoder.config.head_dim
        )
        positions: list[int] = batch.positions.tolist() if self._has_kernel else []  # a card is not waited for
        self._ends = [positions[last - 1] + 1 if self._has_kernel else None for _, last in batch.ranges]
        self._scattered = {at: batch.positions[slice(*batch.ranges[at])] for at in batch.scattered}
        self._table: RunTable | None = None
        if self._has_kernel and len(batch.ranges) > 1 and not (batch.scattered and decoder.config.window):
            ends = [None if at in batch.scattered else end for at, end in enumerate(self._ends)]
            self._table = kv.tabulate(ends, batch.ranges, positions)

    def attend(self, index: int, layer: LayerWeights, heads: Tensor) -> Tensor:
        """As `LayerOps.attend`."""
        spec, kv_layer = self.config.layers[index], self.config.get_kv_layer(index)
        query, keys, values, keys_before_rope = self.split_heads(layer, heads, *self.rotations[spec.rope])
        scales = layer.key_scales if self.kv_format.is_int8 else None
        if scales is not None:
            query = scale_queries(query, scales)
        if self.config.computes_kv(index):
            values = self.kv_format.encode(values) if self.config.has_values else values
            self.kv.write(kv_layer, self.kv_format.encode(keys if scales is None else keys / scales), values)
            if self.batch.recorder is not None:
                if self.kv_format.is_int8 and layer.key_bias is not None:
                    keys_before_rope = keys_before_rope - layer.key_bias
                self.batch.recorder.write(kv_layer, self.kv_format.encode(keys_before_rope), values)
        return self.attend_sequences(kv_layer, spec.window, query)

    def split_heads(
        self, layer: LayerWeights, heads: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries and keys with RoPE, values, and the keys without RoPE: [num_tokens, heads, head_dim] each.

        Of latent attention there are no values.
        """
        num_heads, num_rotated = self.config.num_heads, self.config.num_heads + self.config.num_kv_heads
        self.norm_heads(layer, heads)
        before_rope, values = heads[:, :num_rotated], heads[:, num_rotated:]
        rotated = apply_rope(before_rope, cos, sin)
        return rotated[:, :num_heads], rotated[:, num_heads:], values, before_rope[:, num_heads:]

    def get_runs(self, kv_layer: int, at: int) -> Sequence[Run]:
        """Return what sequence `at` attends to, in numbers where no kernel reads int8."""
        runs = self.kv.runs(kv_layer, at)
        if not self.kv_format.is_int8 or self._has_kernel:
            return runs
        return [
            (self.kv_format.decode(keys, self.kv_format.numbers), self.kv_format.decode(values, self.kv_format.numbers))
            for keys, values in runs
        ]

    def attend_sequences(self, kv_layer: int, window: int | None, query: Tensor) -> Tensor:
        """Return the attention output of each token, [num_tokens, num_heads, head_dim], over its own sequence."""
        config, kv, ranges, scratch = self.config, self.kv, self.batch.ranges, self._scratch
        scoring = window, config.attention_scale, config.attention_cap
        if len(ranges) == 1 and not self._scattered:
            return causal_attention(query, self.get_runs(kv_layer, 0), scratch, *scoring, self._ends[0])
        if self._table is not None:
            kv.point_at(self._table, kv_layer)
            return attend_sequences(query, self._table, config.num_kv_heads, *scoring)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        is_plain = window == config.window and config.attention_cap is None and not self._has_kernel
        singles = kv.singles if is_plain else ()
        if singles:
            rows = [ranges[at][0] for at in singles]
            out[rows] = decode_attention(query[rows], *kv.gather(kv_layer), config.attention_scale)
        for at, (first, last) in enumerate(ranges):
            own, runs = query[first:last], () if at in singles else self.get_runs(kv_layer, at)
            if at in self._scattered:
                out[first:last] = attention_at_positions(own, self._scattered[at], runs, scratch, *scoring)
            elif at not in singles:
                out[first:last] = causal_attention(own, runs, scratch, *scoring, self._ends[at])
        return out


class Decoder:
    """A transformer decoder: grouped-query attention, RoPE, a gated feed-forward part or experts (`engine.families`).

    Not thread-safe: passes share scratch memory.
    """

    def __init__(
        self,
        parameters: Parameters,
        quantize: Quantization | None = None,
        activations: torch.dtype | None = None,
        reason: str = "as asked",
        *,
        kv_int8: bool = False,
    ) -> None:
        """Takes the layers out of `parameters`; raises WeightsError if there is no memory to pack them.

        `activations` is their dtype, if it is not that of the parameters. `reason` says why this precision was chosen.
        kv_int8: keys and values are stored in int8.
        """
        self.precision = Precision(parameters.dtype, activations or parameters.dtype, quantize, reason, kv_int8)
        self.weights = DecoderWeights.from_parameters(
            parameters, quantize, activations, kv_int8=kv_int8, store_output=self.store_output
        )
        self.fingerprint = compute_fingerprint(parameters, self.precision)
        self.config = config = self.weights.config
        self._tables = {
            rope: rope_table(
                config.max_positions,
                config.head_dim,
                rope.theta,
                self.weights.device,
                rope.divisors,
                rope.scale,
                config.rotary_dim,
            )
            for rope in config.ropes
        }
        self._embedding_scale = float(torch.tensor(config.embedding_scale).to(parameters.dtype))  # as transformers
        self.scratch = Scratch()

    @property
    def fault(self) -> Exception | None:
        """What keeps this decoder from running any pass."""
        return None

    def close(self) -> None:
        """End what other processes do for this decoder; it is not used afterwards."""

    def new_caches(self, max_batch_size: int, max_seq_len: int) -> list[KVCache]:
        """Return contiguous KV caches for this model, one for each layer, for `forward`."""
        config, weights = self.config, self.weights
        return KVCache.from_model_config(
            max_batch_size,
            max_seq_len,
            config.num_kv_layers,
            config.num_kv_heads,
            weights.kv_format.get_width(config.head_dim),
            weights.device,
            weights.kv_dtype,
            has_values=config.has_values,
        )

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, caches: list[KVCache], slot: int = 0) -> Tensor:
        """Run the next tokens of one sequence, int64 [num_tokens], and store their keys and values.

        Returns the hidden states after the last norm, [num_tokens, hidden_size].
        """
        start, num_tokens = caches[0].lengths[slot], len(token_ids)
        positions = torch.arange(start, start + num_tokens, device=token_ids.device)
        batch = Batch(token_ids, positions, ((0, num_tokens),), NO_ADAPTERS)
        return self.forward_batch(batch, CacheView(caches, slot, self.config.window, num_tokens))

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, kv: KVStore) -> Tensor:
        """Run the next tokens of several sequences at once and store their keys and values in `kv`.

        Returns the hidden states after the last norm, [num_tokens, hidden_size].
        """
        return self.run_layers(batch.token_ids, self.build_ops(batch, kv))

    def build_ops(self, batch: Batch, kv: KVStore) -> LayerOps:
        """Return the operations of a pass over a batch."""
        return StoreOps(self, batch, kv, self.scratch)

    def run_layers(self, token_ids: Tensor, ops: LayerOps) -> Tensor:
        """Run all layers over tokens, int64 [num_tokens]; return the hidden states after the last norm, [num_tokens,
        hidden_size].
        """
        layers = self.iterate_layers(token_ids, ops)
        try:
            output = next(layers)
            while True:
                output = layers.send(self.sum_output(*output))
        except StopIteration as done:
            hidden: Tensor = done.value
            return hidden

    def store_output(self, store: Store) -> Store:
        """Return the store of the projections out of attention and of dense feed-forward parts."""
        return store

    def sum_output(self, output: Tensor, part: object) -> Tensor:
        """Return the result of attention or of a feed-forward part, [num_tokens, hidden_size], from what `part`, its
        last projection or its experts, has computed here: if ranks share a layer, it is summed over them.
        """
        return output

    def iterate_layers(self, token_ids: Tensor, ops: LayerOps) -> Generator[tuple[Tensor, object], Tensor, Tensor]:
        """Do what `run_layers` does; each `output, part` that is yielded has to be answered by `sum_output` of it."""
        layers, head_dim = self.weights.layers, self.config.head_dim
        hidden = F.embedding(token_ids, self.weights.embedding).to(self.weights.dtype)
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale
        normed = ops.norm(hidden, layers[0].attention_norm)
        next_norms = [*(layer.attention_norm for layer in layers[1:]), self.weights.final_norm]
        for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            projected = ops.project("qkv", index, layer.qkv, normed)
            if layer.latent is None:
                attended = ops.attend(index, layer, projected.view(len(hidden), -1, head_dim))
            else:
                attended = ops.make_values(
                    layer.latent, ops.attend(index, layer, ops.make_heads(layer.latent, projected))
                )
            out = ops.project("attention_out", index, layer.attention_out, attended.view(len(hidden), -1))
            out = yield out, layer.attention_out
            normed = ops.add_norm(hidden, out, layer.attention_out_norm, layer.ffn_norm)
            out = yield ops.feed_forward(index, layer, normed), layer.feed_forward
            normed = ops.add_norm(hidden, out, layer.ffn_out_norm, next_norm)
        return normed

    def get_rotations(self, positions: Tensor) -> dict[Rope, tuple[Tensor, Tensor]]:
        """Return the cosines and sines of each RoPE at these positions, float32 [num_positions, head_dim // 2] each."""
        return {rope: (cos[positions], sin[positions]) for rope, (cos, sin) in self._tables.items()}

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the next token, [num_tokens, vocab_size], for these hidden states."""
        return self.weights.lm_head(hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> TopTokens:
        """Return the most likely next token for each of these hidden states; the logits are not kept."""
        return find_top_tokens_by_tile(hidden, self.weights.lm_head_tiles)
