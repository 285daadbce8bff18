"""A decoder that gives a token the same bits whatever runs beside it, at the price of smaller products.

Plain products differ in their last bits with the number of rows: a library takes another kernel, or cuts the sums
otherwise. Here every operation on rows is made for ROWS of them at a time, padded, so that all have one shape; and
attention is `invariant_attention`. A speculative run then equals a plain one bit for bit, in bfloat16 too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import Batch, KVStore
from engine.model import Decoder, Pass
from engine.projections import AdapterRows, ProjectionKind
from kernels.accept import Likeliest, likeliest
from kernels.attention import invariant_attention
from kernels.rms_norm import rms_norm

ROWS = 16
"""Rows of every product: few enough for a single token, enough to read the weights of a long prompt seldom."""


@dataclass(frozen=True, slots=True)
class _AdapterPiece(AdapterRows):
    """Updates are computed for all rows of a piece, and added to those of their adapter: one shape, too."""

    def apply(self, kind: ProjectionKind, layer: int, x: Tensor, out: Tensor) -> None:
        """As `AdapterRows.apply`."""
        for adapter, start, end in self.ranges:
            whole = out.clone()
            adapter.apply(kind, layer, x, whole)
            out[start:end] = whole[start:end]


class InvariantDecoder(Decoder):
    """The same weights, scratch memory and results, up to their last bits, as the decoder it is made of."""

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
        passes = [self._pass_of(piece, positions[piece], batch, kv) for piece in pieces]
        ends = [int(batch.positions[last - 1]) + 1 for _, last in batch.ranges]
        for index, layer in enumerate(self.weights.layers):
            parts = [
                self._heads(index, layer, hidden[piece], pass_) for piece, pass_ in zip(pieces, passes, strict=True)
            ]
            query, keys, values = (torch.cat(each) for each in zip(*parts, strict=True))
            kv.write(index, keys[:num_tokens], values[:num_tokens])
            attended = self._attended(index, query, batch.ranges, ends, kv)
            for piece, pass_ in zip(pieces, passes, strict=True):
                hidden[piece] += pass_.project("attention_out", index, layer.attention_out, attended[piece])
                hidden[piece] += self._feed_forward(index, layer, hidden[piece], pass_)
        normed = [rms_norm(hidden[piece], self.weights.final_norm, eps) for piece in pieces]
        return torch.cat(normed)[:num_tokens]

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """As `Decoder.logits`."""
        return _in_pieces(self.weights.lm_head, hidden)

    @torch.inference_mode()
    def likeliest(self, hidden: Tensor) -> Likeliest:
        """As `Decoder.likeliest`."""
        return likeliest(hidden, [partial(_in_pieces, tile) for tile in self.weights.lm_head_tiles])

    def _pass_of(self, piece: slice, positions: Tensor, batch: Batch, kv: KVStore) -> Pass:
        """What concerns the rows of one piece; it looks back for itself."""
        cut = [
            (adapter, max(start, piece.start) - piece.start, min(end, piece.stop) - piece.start)
            for adapter, start, end in batch.adapters.ranges
            if start < piece.stop and end > piece.start
        ]
        return Pass((), self._cos[positions], self._sin[positions], kv, _AdapterPiece(tuple(cut)))

    def _attended(
        self, index: int, query: Tensor, ranges: Sequence[tuple[int, int]], ends: Sequence[int], kv: KVStore
    ) -> Tensor:
        """What each row finds in its own sequence, [num_rows, num_heads * head_dim]; padding finds nothing."""
        out = torch.zeros_like(query)
        for at, ((first, last), end) in enumerate(zip(ranges, ends, strict=True)):
            runs = kv.runs(index, at)
            out[first:last] = invariant_attention(query[first:last], runs, end, self.config.sliding_window)
        return out.view(len(query), -1)


def _in_pieces(function: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """What a function of rows gives, ROWS at a time."""
    padded = F.pad(rows, (0, 0, 0, -len(rows) % ROWS))
    return torch.cat([function(padded[first : first + ROWS]) for first in range(0, len(padded), ROWS)])[: len(rows)]
