"""What a forward pass is given: the next tokens of several sequences behind one another, and where their KV goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from engine.projections import Adapter, AdapterRows
from kernels.attention import Run


class KVRecorder(Protocol):
    """Keeps what a pass computes, beside the KVStore that the pass looks back on."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Take keys before RoPE and values of all tokens of the batch, [num_tokens, num_kv_heads, head_dim] each."""
        ...


class KVStore(Protocol):
    """The keys and values of one batch's sequences, those of earlier passes and those that this one adds.

    `singles` are sequences of the batch that have one token in it and are best attended to together.
    """

    singles: Sequence[int]

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store the keys and values of all tokens of the batch, [num_tokens, num_kv_heads, head_dim] each."""
        ...

    def runs(self, layer: int, index: int) -> Sequence[Run]:
        """What the tokens of the batch's sequence `index` may look at, in order, up to its own last token."""
        ...

    def gather(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of all `singles`, side by side, and the bias that hides what is too much of them.

        [num_singles, most_tokens, num_kv_heads, head_dim] twice, and [num_singles, 1, 1, most_tokens], 0 or -inf.
        """
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of several sequences, ragged: those of sequence i are the rows `ranges[i]`, half-open.

    A sequence's positions ascend. Those of the sequences `scattered` are not neighbours: what lies between has KV.
    """

    token_ids: Tensor  # int64 [num_tokens]
    positions: Tensor  # int64 [num_tokens]
    ranges: tuple[tuple[int, int], ...]
    adapters: AdapterRows
    scattered: frozenset[int] = frozenset()
    recorder: KVRecorder | None = None

    @classmethod
    def of(
        cls,
        chunks: Sequence[tuple[int | Sequence[int], Sequence[int]]],
        device: torch.device,
        adapters: Sequence[Adapter | None] | None = None,
    ) -> Batch:
        """One chunk a sequence: where its tokens stand, or the first of them, and the tokens; and its LoRA adapter."""
        token_ids = [token_id for _, ids in chunks for token_id in ids]
        by_chunk = [range(at, at + len(ids)) if isinstance(at, int) else at for at, ids in chunks]
        positions = [position for each in by_chunk for position in each]
        borders = accumulate((len(ids) for _, ids in chunks), initial=0)
        return cls(
            torch.tensor(token_ids, dtype=torch.int64, device=device),
            torch.tensor(positions, dtype=torch.int64, device=device),
            tuple(pairwise(borders)),
            AdapterRows.of(zip(adapters or [None] * len(chunks), (len(ids) for _, ids in chunks), strict=True)),
            frozenset(at for at, each in enumerate(by_chunk) if each[-1] - each[0] >= len(each)),
        )


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending positions as half-open ranges of neighbours: [3, 4, 8] are [(3, 5), (8, 9)]."""
    if positions[-1] - positions[0] < len(positions):  # so it is for most
        return [(positions[0], positions[-1] + 1)]
    ends = [at for at in range(1, len(positions)) if positions[at] != positions[at - 1] + 1]
    borders = [0, *ends, len(positions)]
    return [(positions[first], positions[end - 1] + 1) for first, end in pairwise(borders)]
