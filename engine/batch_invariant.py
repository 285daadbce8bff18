"""A decoder whose result for a token does not depend on the rest of the batch.

Plain products differ in their last bits with the number of rows: a library takes another kernel, or splits the sums
otherwise. Here every operation on rows is done for ROWS of them at a time, padded, so that all have one shape; and
attention is `invariant_attention`. A speculative run then equals a plain one bit for bit, also in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.decoder import Batch, Decoder, ForwardContext, KVStore, find_ranges
from engine.layers import AdapterRows, ProjectionKind
from kernels.accept import TopTokens, find_top_tokens_by_tile
from kernels.attention import invariant_attention, truncate_runs
from kernels.rms_norm import rms_norm

ROWS = 16
"""Rows of every product: few enough for a single token, enough to read the weights seldom in a long prompt."""


@dataclass(frozen=True, slots=True)
class _AdapterPiece(AdapterRows):
    """Computes updates for all rows of a piece and adds them to the rows of their adapter, so that all
    have one shape.
    """

    def apply(self, kind: ProjectionKind, layer: int, x: Tensor, out: Tensor) -> None:
        """As `AdapterRows.apply`."""
        for adapter, start, end in self.ranges:
            whole = out.clone()
            adapter.apply(kind, layer, x, whole)
            out[start:end] = whole[start:end]


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


class InvariantDecoder(Decoder):
    """A decoder with the same weights, scratch memory and results, up to their last bits, as the given one."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)
        self.fingerprint = blake2b(decoder.fingerprint, digest_size=16, person=b"invariant").digest()

    @torch.inference_mode()
    def forward_batch(self, batch: Batch, kv: KVStore) -> Tensor:
        """As `Decoder.forward_batch`."""
        num_tokens, eps = len(batch.token_ids), self.config.rms_norm_eps
        missing = (0, -num_tokens % ROWS)
        hidden = F.embedding(F.pad(batch.token_ids, missing), self.weights.embedding)
        positions = F.pad(batch.positions, missing)
        pieces = [slice(first, first + ROWS) for first in range(0, len(hidden), ROWS)]
        contexts = [self._build_context(piece, positions[piece], batch, kv) for piece in pieces]
        neighbours = _find_neighbours(batch)
        for index, layer in enumerate(self.weights.layers):
            parts = [
                self._project_heads(index, layer, hidden[piece], context)
                for piece, context in zip(pieces, contexts, strict=True)
            ]
            query, keys, values, before_rope = (torch.cat(each) for each in zip(*parts, strict=True))
            kv.write(index, keys[:num_tokens], values[:num_tokens])
            if batch.recorder is not None:
                batch.recorder.write(index, before_rope[:num_tokens], values[:num_tokens])
            attended = self._attend_rows(index, query, neighbours, kv)
            for piece, context in zip(pieces, contexts, strict=True):
                hidden[piece] += context.project("attention_out", index, layer.attention_out, attended[piece])
                hidden[piece] += self._feed_forward(index, layer, hidden[piece], context)
        normed = [rms_norm(hidden[piece], self.weights.final_norm, eps) for piece in pieces]
        return torch.cat(normed)[:num_tokens]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`."""
        return _apply_by_piece(self.weights.lm_head, hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> TopTokens:
        """As `Decoder.likeliest`."""
        return find_top_tokens_by_tile(hidden, [partial(_apply_by_piece, tile) for tile in self.weights.lm_head_tiles])

    def _build_context(self, piece: slice, positions: Tensor, batch: Batch, kv: KVStore) -> ForwardContext:
        """Return the context of the rows of one piece, without attention, which is done for all rows."""
        cut = [
            (adapter, max(start, piece.start) - piece.start, min(end, piece.stop) - piece.start)
            for adapter, start, end in batch.adapters.ranges
            if start < piece.stop and end > piece.start
        ]
        return ForwardContext((), self._cos[positions], self._sin[positions], kv, _AdapterPiece(tuple(cut)))

    def _attend_rows(self, index: int, query: Tensor, neighbours: Sequence[_Neighbours], kv: KVStore) -> Tensor:
        """Return the attention output of each row, [num_rows, num_heads * head_dim]; padding gets zeros."""
        out = torch.zeros_like(query)
        for each in neighbours:
            runs = truncate_runs(kv.runs(index, each.at), each.end) if each.is_part else kv.runs(index, each.at)
            out[each.rows] = invariant_attention(query[each.rows], runs, each.end, self.config.sliding_window)
        return out.view(len(query), -1)


def _apply_by_piece(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Apply a function of rows to ROWS of them at a time, padded."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
    return torch.cat([function(padded[first : first + ROWS]) for first in range(0, len(padded), ROWS)])[: len(rows)]
