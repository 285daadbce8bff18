"""The decoder's forward pass, its ragged batch and its contiguous KV cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import DoesNotFit
from engine.layers import (
    Adapter,
    AdapterRows,
    DecoderWeights,
    LayerWeights,
    MaskedAdapters,
    Projection,
    ProjectionKind,
    Quantization,
)
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
        """Store the keys and values of all tokens of the batch, [num_tokens, num_kv_heads, head_dim] each."""
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
        adapters: Sequence[Adapter | None] | None = None,
    ) -> Batch:
        """Return the batch of one chunk for each sequence: its positions or the first of them, its tokens, its LoRA
        adapter.
        """
        token_ids = [token_id for _, ids in chunks for token_id in ids]
        by_chunk = [range(at, at + len(ids)) if isinstance(at, int) else at for at, ids in chunks]
        positions = [position for each in by_chunk for position in each]
        borders = accumulate((len(ids) for _, ids in chunks), initial=0)
        return cls(
            torch.tensor(token_ids, dtype=torch.int64, device=device),
            torch.tensor(positions, dtype=torch.int64, device=device),
            tuple(pairwise(borders)),
            AdapterRows.from_sequences(
                zip(adapters or [None] * len(chunks), (len(ids) for _, ids in chunks), strict=True)
            ),
            frozenset(at for at, each in enumerate(by_chunk) if each[-1] - each[0] >= len(each)),
        )


def find_ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending positions as half-open ranges of neighbours: [3, 4, 8] are [(3, 5), (8, 9)]."""
    if positions[-1] - positions[0] < len(positions):  # so it is for most
        return [(positions[0], positions[-1] + 1)]
    ends = [at for at in range(1, len(positions)) if positions[at] != positions[at - 1] + 1]
    borders = [0, *ends, len(positions)]
    return [(positions[first], positions[end - 1] + 1) for first, end in pairwise(borders)]


class KVCache:
    """One layer's keys and values for up to `max_batch_size` sequences of up to `max_seq_len` tokens.

    `keys` and `values` are [max_batch_size, num_kv_heads, max_seq_len, head_dim]; in slot b the tokens [0,
    `lengths[b]`) are valid, and the rest is never read.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_seq_len: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        shape = (max_batch_size, num_kv_heads, max_seq_len, head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)  # zeros touch every page now, not under a request
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = [0] * max_batch_size
        self.max_seq_len = max_seq_len

    @classmethod
    def from_model_config(
        cls,
        max_batch_size: int,
        max_seq_len: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> list[KVCache]:
        """Return one cache for each layer."""
        return [cls(max_batch_size, max_seq_len, num_kv_heads, head_dim, device, dtype) for _ in range(num_layers)]

    def append(self, slot: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the next tokens' keys and values, [num_tokens, num_kv_heads, head_dim]; return all of the slot's.

        Returns views [num_kv_heads, length, head_dim]. Raises DoesNotFit if the cache is too short.
        """
        start, end = self.lengths[slot], self.lengths[slot] + keys.shape[0]
        if end > self.max_seq_len:
            raise DoesNotFit(f"{end} tokens do not fit a cache of {self.max_seq_len}")
        self.keys[slot, :, start:end] = keys.transpose(0, 1)
        self.values[slot, :, start:end] = values.transpose(0, 1)
        self.lengths[slot] = end
        return self.keys[slot, :, :end], self.values[slot, :, :end]

    def run(self, slot: int, first: int = 0) -> Run:
        """Return views of a slot's keys and values from token `first` on, [num_tokens, num_kv_heads, head_dim]."""
        seen = slice(first, self.lengths[slot])
        return self.keys[slot, :, seen].transpose(0, 1), self.values[slot, :, seen].transpose(0, 1)

    def truncate(self, slot: int, length: int) -> None:
        """Forget the tokens [length, ...) of a slot: a rejected draft, or another continuation."""
        assert 0 <= length <= self.lengths[slot]
        self.lengths[slot] = length


def reset_all_caches(caches: Iterable[KVCache]) -> None:
    """Forget every token of every slot; the memory stays allocated."""
    for cache in caches:
        cache.lengths = [0] * len(cache.lengths)


class CacheView:
    """One slot of every layer's cache as the `KVStore` of a batch with `num_tokens` tokens of one sequence."""

    singles: Sequence[int] = ()

    def __init__(self, caches: Sequence[KVCache], slot: int, window: int | None, num_tokens: int) -> None:
        self._caches = caches
        self._slot = slot
        start = caches[0].lengths[slot]
        self._first_key = 0 if window is None else max(0, start + 1 - window)
        if start + num_tokens > caches[0].max_seq_len:
            raise DoesNotFit(f"{start + num_tokens} tokens do not fit a cache of {caches[0].max_seq_len}")

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Append to the layer's cache."""
        self._caches[layer].append(self._slot, keys, values)

    def runs(self, layer: int, index: int) -> list[Run]:
        """Return one run: the cache is contiguous."""
        assert index == 0, "a slot holds one sequence"
        return [self._caches[layer].run(self._slot, self._first_key)]

    def tabulate(
        self, ends: Sequence[int | None], ranges: Sequence[tuple[int, int]], positions: Sequence[int]
    ) -> RunTable:
        """Never called: there is one sequence."""
        raise AssertionError("a contiguous cache has one sequence")

    def point_at(self, table: RunTable, layer: int) -> None:
        """Never called: there is one sequence."""
        raise AssertionError("a contiguous cache has one sequence")

    def gather(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Never called: there is one sequence."""
        raise AssertionError("a contiguous cache has no singles")


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

    def norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """As `rms_norm`."""
        return rms_norm(hidden, weight, self.config.rms_norm_eps)

    def add_norm(self, hidden: Tensor, delta: Tensor, weight: Tensor) -> Tensor:
        """As `add_rms_norm`: add to `hidden` in place and return the norm of the sum."""
        return add_rms_norm(hidden, delta, weight, self.config.rms_norm_eps)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """As `swiglu`."""
        return swiglu(gate_up)

    def attend(self, index: int, layer: LayerWeights, heads: Tensor) -> Tensor:
        """Keep the keys and values of layer `index`, and return what each token's queries find among those so far.

        heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim], before their norm and RoPE; they may be changed.
        Returns [num_tokens, num_heads, head_dim].
        """
        raise NotImplementedError


class StoreOps(LayerOps):
    """The operations of a pass whose keys and values are in a `KVStore`."""

    def __init__(self, decoder: Decoder, batch: Batch, kv: KVStore, scratch: Scratch) -> None:
        super().__init__(decoder.config, batch.adapters)
        self.batch = batch
        self.kv = kv
        self.cos, self.sin = decoder.get_rotations(batch.positions)
        self._scratch = scratch
        self._kv_dtype = decoder.weights.kv_dtype
        self._has_kernel = decoder.weights.device.type == "cpu" and can_attend(
            decoder.weights.dtype, self._kv_dtype, decoder.config.head_dim
        )
        positions: list[int] = batch.positions.tolist() if self._has_kernel else []  # a card is not waited for
        self._ends = [positions[last - 1] + 1 if self._has_kernel else None for _, last in batch.ranges]
        self._scattered = {at: batch.positions[slice(*batch.ranges[at])] for at in batch.scattered}
        self._table: RunTable | None = None
        if self._has_kernel and len(batch.ranges) > 1 and not (batch.scattered and decoder.config.sliding_window):
            ends = [None if at in batch.scattered else end for at, end in enumerate(self._ends)]
            self._table = kv.tabulate(ends, batch.ranges, positions)

    def attend(self, index: int, layer: LayerWeights, heads: Tensor) -> Tensor:
        """As `LayerOps.attend`."""
        query, keys, values, keys_before_rope = self.split_heads(layer.head_norms, heads, self.cos, self.sin)
        values = values.to(self._kv_dtype)
        self.kv.write(index, keys.to(self._kv_dtype), values)
        if self.batch.recorder is not None:
            self.batch.recorder.write(index, keys_before_rope.to(self._kv_dtype), values)
        return self.attend_sequences(index, query)

    def split_heads(
        self, norms: Tensor | None, heads: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries and keys with RoPE, values, and the keys without RoPE: [num_tokens, heads, head_dim] each."""
        num_heads, num_rotated = self.config.num_heads, self.config.num_heads + self.config.num_kv_heads
        before_rope, values = heads[:, :num_rotated], heads[:, num_rotated:]
        if norms is not None:
            rms_norm(before_rope, norms, self.config.rms_norm_eps, out=before_rope)
        rotated = apply_rope(before_rope, cos, sin)
        return rotated[:, :num_heads], rotated[:, num_heads:], values, before_rope[:, num_heads:]

    def attend_sequences(self, index: int, query: Tensor) -> Tensor:
        """Return the attention output of each token, [num_tokens, num_heads, head_dim], over its own sequence."""
        kv, ranges, window = self.kv, self.batch.ranges, self.config.sliding_window
        if len(ranges) == 1 and not self._scattered:
            return causal_attention(query, kv.runs(index, 0), self._scratch, window, self._ends[0])
        if self._table is not None:
            kv.point_at(self._table, index)
            return attend_sequences(query, self._table, self.config.num_kv_heads, window)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        singles = () if self._has_kernel else kv.singles
        if singles:
            rows = [ranges[at][0] for at in singles]
            out[rows] = decode_attention(query[rows], *kv.gather(index))
        for at, (first, last) in enumerate(ranges):
            if at in self._scattered:
                own, positions = query[first:last], self._scattered[at]
                out[first:last] = attention_at_positions(own, positions, kv.runs(index, at), self._scratch)
            elif at not in singles:
                runs = kv.runs(index, at)
                out[first:last] = causal_attention(query[first:last], runs, self._scratch, window, self._ends[at])
        return out


class Decoder:
    """A pre-norm transformer decoder (Llama, Mistral, Qwen2, Qwen3): grouped-query attention, RoPE, SwiGLU.

    Not thread-safe: passes share scratch memory.
    """

    def __init__(
        self,
        parameters: Parameters,
        quantize: Quantization | None = None,
        activations: torch.dtype | None = None,
        reason: str = "as asked",
    ) -> None:
        """Takes the layers out of `parameters`; raises WeightsError if there is no memory to pack them.

        `activations` is their dtype, if it is not that of the parameters. `reason` says why this precision was chosen.
        """
        self.precision = Precision(parameters.dtype, activations or parameters.dtype, quantize, reason)
        self.weights = DecoderWeights.from_parameters(parameters, quantize, activations)
        self.fingerprint = compute_fingerprint(parameters, self.precision)
        self.config = config = self.weights.config
        self._cos, self._sin = rope_table(
            config.max_positions,
            config.head_dim,
            config.rope_theta,
            self.weights.device,
            config.rope_divisors,
            config.rope_scale,
        )
        self.scratch = Scratch()

    def new_caches(self, max_batch_size: int, max_seq_len: int) -> list[KVCache]:
        """Return contiguous KV caches for this model, one for each layer, for `forward`."""
        config, weights = self.config, self.weights
        return KVCache.from_model_config(
            max_batch_size,
            max_seq_len,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            weights.device,
            weights.kv_dtype,
        )

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, caches: list[KVCache], slot: int = 0) -> Tensor:
        """Run the next tokens of one sequence, int64 [num_tokens], and store their keys and values.

        Returns the hidden states after the last norm, [num_tokens, hidden_size].
        """
        start, num_tokens = caches[0].lengths[slot], len(token_ids)
        positions = torch.arange(start, start + num_tokens, device=token_ids.device)
        batch = Batch(token_ids, positions, ((0, num_tokens),), AdapterRows(()))
        return self.forward_batch(batch, CacheView(caches, slot, self.config.sliding_window, num_tokens))

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, kv: KVStore) -> Tensor:
        """Run the next tokens of several sequences at once and store their keys and values in `kv`.

        Returns the hidden states after the last norm, [num_tokens, hidden_size].
        """
        return self.run_layers(batch.token_ids, StoreOps(self, batch, kv, self.scratch))

    def run_layers(self, token_ids: Tensor, ops: LayerOps) -> Tensor:
        """Run all layers over tokens, int64 [num_tokens]; return the hidden states after the last norm, [num_tokens,
        hidden_size].
        """
        layers, head_dim = self.weights.layers, self.config.head_dim
        hidden = F.embedding(token_ids, self.weights.embedding).to(self.weights.dtype)
        normed = ops.norm(hidden, layers[0].attention_norm)
        next_norms = [*(layer.attention_norm for layer in layers[1:]), self.weights.final_norm]
        for index, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            heads = ops.project("qkv", index, layer.qkv, normed).view(len(hidden), -1, head_dim)
            attended = ops.attend(index, layer, heads).view(len(hidden), -1)
            out = ops.project("attention_out", index, layer.attention_out, attended)
            normed = ops.add_norm(hidden, out, layer.ffn_norm)
            activated = ops.swiglu(ops.project("gate_up", index, layer.gate_up, normed))
            normed = ops.add_norm(hidden, ops.project("down", index, layer.down, activated), next_norm)
        return normed

    def get_rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of RoPE at these positions, float32 [num_positions, head_dim // 2] each."""
        return self._cos[positions], self._sin[positions]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of the next token, [num_tokens, vocab_size], for these hidden states."""
        return self.weights.lm_head(hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> TopTokens:
        """Return the most likely next token for each of these hidden states; the logits are not kept."""
        return find_top_tokens_by_tile(hidden, self.weights.lm_head_tiles)
