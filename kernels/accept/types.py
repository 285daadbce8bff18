"""Values of the op: rows, draws, and confirmed tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero; any temperature so small is greedy."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Row r draws the token that `numbers[r]` falls on when the weights `exp((logit - largest) / temperatures[r])` are
    laid side by side in the order of their ids; where its temperature is 0 it takes the likeliest. A weight of 0 is
    never drawn.
    """

    temperatures: Tensor  # float32 [num_rows]
    numbers: Tensor  # float64 [num_rows], in [0, 1)


MOST_ROWS = 4096


def rows_up_to(num_rows: int) -> int:
    """The next power of 4 from `num_rows` on, and not above MOST_ROWS."""
    power = 1
    while power < min(num_rows, MOST_ROWS):
        power *= 4
    return power


Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Likeliest:
    """Of equal logits the first is the likeliest. All arrays are [num_rows].

    `largest` is a NaN where any logit of the row is one; the token id says nothing then. `second` is the largest of
    the others: `largest` again at a tie, -inf where there are no others.
    """

    token_ids: NDArray[np.intp]
    largest: Numbers
    second: Numbers

    @property
    def gaps(self) -> Numbers:
        """By how much the likeliest logit is above the next: how near a tie the choice was."""
        return self.largest - self.second

    def rows(self, start: int, end: int) -> Likeliest:
        """Those of the rows [start, end)."""
        return Likeliest(self.token_ids[start:end], self.largest[start:end], self.second[start:end])

    def beside(self, other: Likeliest, offset: int) -> Likeliest:
        """Of the same rows over more of the vocabulary: `other` begins at token id `offset`, behind all of these."""
        ahead = (other.largest > self.largest) | (np.isnan(other.largest) & ~np.isnan(self.largest))
        return Likeliest(
            np.where(ahead, other.token_ids + offset, self.token_ids),
            np.where(ahead, other.largest, self.largest),
            np.where(ahead, np.maximum(self.largest, other.second), np.maximum(self.second, other.largest)),
        )


WORDS_PER_ROW = 4


def num_accepted(token_ids: NDArray[np.intp], draft: Sequence[int]) -> int:
    """Draft tokens before the first that is not the chosen one; token_ids[i] is chosen where draft[i] stands."""
    count = min(len(token_ids), len(draft))
    departures = np.flatnonzero(token_ids[:count] != np.asarray(draft[:count], dtype=np.intp))
    return int(departures[0]) if len(departures) else count


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a pass chose, in one tensor, so that one copy brings all of it to the host.

    words: int32 [4 * num_rows + num_seqs] on any device: the chosen token of each row, the likeliest one, the bits of
    its logit and those of the runner-up's (float32), then how many tokens each sequence confirms of its draft. The
    memory may be used again: a replayed graph writes into it. The properties read words that are on the CPU.
    """

    words: Tensor
    num_rows: int

    @classmethod
    def empty(cls, num_rows: int, num_seqs: int, device: torch.device) -> Accepted:
        """Room for what a kernel writes."""
        words = torch.empty(WORDS_PER_ROW * num_rows + num_seqs, dtype=torch.int32, device=device)
        return cls(words, num_rows)

    def to_host(self) -> Accepted:
        """The same on the CPU; waits for the device, the one time that a pass has to."""
        return Accepted(self.words.cpu(), self.num_rows)

    def columns(self) -> tuple[Tensor, ...]:
        """Chosen ids, likeliest ids, largest and second logits, [num_rows] each, then [num_seqs] counts: no copies."""
        token_ids, likeliest, largest, second = self.words[: WORDS_PER_ROW * self.num_rows].view(WORDS_PER_ROW, -1)
        numbers = (each.view(torch.float32) for each in (largest, second))
        return token_ids, likeliest, *numbers, self.words[WORDS_PER_ROW * self.num_rows :]

    @property
    def token_ids(self) -> NDArray[np.intp]:
        """The token chosen behind each row: the likeliest, or the one that was drawn."""
        return self._on_host(0).astype(np.intp)

    @property
    def likeliest(self) -> Likeliest:
        """The likeliest of each row, whatever was chosen."""
        return Likeliest(self._on_host(1).astype(np.intp), self._on_host(2), self._on_host(3))

    @property
    def num_accepted(self) -> NDArray[np.intp]:
        """How many tokens of its draft each sequence confirms: [num_seqs]."""
        return self._on_host(4).astype(np.intp)

    def _on_host(self, column: int) -> NDArray[Any]:
        assert self.words.device.type == "cpu", "what was chosen is read from a copy on the host"
        return self.columns()[column].numpy()
