"""A decoder whose result for a token does not depend on the rest of the batch.

Plain products differ in their last bits with the number of rows: a library takes another kernel, or splits the sums
otherwise. Here every operation on rows is done for ROWS of them at a time, padded, so that all have one shape; and
attention is `invariant_attention`. A speculative run then equals a plain one bit for bit, also in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import Batch, Decoder, KVStore, LayerOps, StoreOps, find_ranges
from engine.layers import Experts, LatentProjections, LayerWeights, Projection, ProjectionKind
from kernels.accept import TopTokens, find_top_tokens_by_tile
from kernels.attention import invariant_attention, truncate_runs

ROWS = 16
"""Rows of every product: few enough for a single token, enough to read the weights seldom in a long prompt."""


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """Rows of the batch's sequence `at` with neighbouring positions, the last one before position `end`."""

    at: int
    rows: slice
    end: int
    is_part: bool


def _find_neighbours(batch: Batch) -> list[_Neighbours]:
    found = []
    for at, (first, last) in enumerate(batch.ranges):
        runs = find_ranges(batch.positions[first:last].tolist())
        row = first
        for start, end in runs:
            found.append(_Neighbours(at, slice(row, row + end - start), end, len(runs) > 1))
            row += end - start
    return found


class InvariantOps(StoreOps):
    """The operations of a pass whose rows, without those of the batch, are padded to a multiple of ROWS."""

    def __init__(self, decoder: Decoder, batch: Batch, kv: KVStore, num_rows: int) -> None:
        super().__init__(decoder, batch, kv, decoder.scratch)
        self._num_rows = num_rows
        self._adapted = batch.adapters.ranges
        self._neighbours = _find_neighbours(batch)
        self.rotations = decoder.get_rotations(F.pad(batch.positions, (0, num_rows - len(batch.positions))))

    def project(self, kind: ProjectionKind, index: int, projection: Projection, x: Tensor) -> Tensor:
        """As `LayerOps.project`; an adapter's updates are computed for whole pieces and added to its own rows."""
        out = _apply_by_piece(projection, x)
        for adapter, start, end in self._adapted:
            updated = out.clone()
            for first in range(start - start % ROWS, end, ROWS):
                adapter.apply(kind, index, x[first : first + ROWS], updated[first : first + ROWS])
            out[start:end] = updated[start:end]
        return out

    def norm(self, hidden: Tensor, weight: Tensor | None) -> Tensor:
        """As `LayerOps.norm`."""
        return hidden if weight is None else _apply_by_piece(partial(super().norm, weight=weight), hidden)

    def add_norm(self, hidden: Tensor, delta: Tensor, delta_weight: Tensor | None, weight: Tensor | None) -> Tensor:
        """As `LayerOps.add_norm`."""
        add = partial(LayerOps.add_norm, self, delta_weight=delta_weight, weight=weight)
        return _apply_by_piece(add, hidden, delta)

    def activate(self, gate_up: Tensor) -> Tensor:
        """As `LayerOps.activate`."""
        return _apply_by_piece(super().activate, gate_up)

    def make_heads(self, latent: LatentProjections, projected: Tensor) -> Tensor:
        """As `LayerOps.make_heads`."""
        return _apply_by_piece(latent.make_heads, projected)

    def make_values(self, latent: LatentProjections, attended: Tensor) -> Tensor:
        """As `LayerOps.make_values`."""
        return _apply_by_piece(latent.make_values, attended)

    def feed_forward(self, index: int, layer: LayerWeights, x: Tensor) -> Tensor:
        """As `LayerOps.feed_forward`."""
        part = layer.feed_forward
        if isinstance(part, Experts):
            return _apply_by_piece(partial(part, activate=self.activate, pad=ROWS), x)
        return super().feed_forward(index, layer, x)

    def split_heads(
        self, layer: LayerWeights, heads: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `StoreOps.split_heads`, without the padding."""
        split = partial(super().split_heads, layer)
        pieces = [split(*rows) for rows in _split_pieces(heads, cos, sin)]
        query, keys, values, keys_before_rope = (
            torch.cat(each)[: len(self.batch.token_ids)] for each in zip(*pieces, strict=True)
        )
        return query, keys, values, keys_before_rope

    def attend_sequences(self, kv_layer: int, window: int | None, query: Tensor) -> Tensor:
        """As `StoreOps.attend_sequences`; padding gets zeros."""
        scoring = window, self.config.attention_scale, self.config.attention_cap
        out = query.new_zeros(self._num_rows, *query.shape[1:])
        for each in self._neighbours:
            runs = self.kv.runs(kv_layer, each.at)
            runs = [
                (self.kv_format.decode(keys, torch.float32), self.kv_format.decode(values, torch.float32))
                for keys, values in runs
            ]
            if each.is_part:
                runs = truncate_runs(runs, each.end)
            out[each.rows] = invariant_attention(query[each.rows], runs, each.end, *scoring)
        return out


class InvariantDecoder(Decoder):
    """A decoder with the same weights, scratch memory and results, up to their last bits, as the given one."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self.fingerprint = blake2b(decoder.fingerprint, digest_size=16, person=b"invariant").digest()

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, kv: KVStore) -> Tensor:
        """As `Decoder.forward_batch`."""
        token_ids = _pad_rows(batch.token_ids)
        return self.run_layers(token_ids, InvariantOps(self, batch, kv, len(token_ids)))[: len(batch.token_ids)]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`."""
        return _project_rows(self.weights.lm_head, hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> TopTokens:
        """As `Decoder.likeliest`."""
        return find_top_tokens_by_tile(hidden, [partial(_project_rows, tile) for tile in self.weights.lm_head_tiles])


def _pad_rows(rows: Tensor) -> Tensor:
    """Add zeros up to a multiple of ROWS rows."""
    return F.pad(rows, (*(0, 0) * (rows.dim() - 1), 0, -len(rows) % ROWS))


def _project_rows(projection: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    return _apply_by_piece(projection, _pad_rows(rows))[: len(rows)]


def _apply_by_piece(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """Apply a function of rows to ROWS of them at a time; they are a multiple of ROWS."""
    return torch.cat([function(*piece) for piece in _split_pieces(*rows)])


def _split_pieces(*rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(torch.split(each, ROWS) for each in rows), strict=True)
