"""Types of the op `accept`: sampling inputs, top tokens and the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MIN_TEMPERATURE = 1e-30
"""Lower temperatures would divide by zero in float32; such a small temperature is greedy."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Temperatures and random numbers for sampling.

    Row r takes the token at which the running sum of the weights `exp((logit - largest) / temperatures[r])`, in the
    order of token ids, passes `numbers[r]` of their total. A temperature of 0 takes the top token. A token of weight 0
    is never drawn.
    """

    temperatures: Tensor  # float32 [num_rows]
    numbers: Tensor  # float64 [num_rows], in [0, 1)


MAX_ROWS = 4096


def round_up_rows(num_rows: int) -> int:
    """Round up to the next power of 4, at most MAX_ROWS."""
    power = 1
    while power < min(num_rows, MAX_ROWS):
        power *= 4
    return power


Numbers = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The top token of each row; of equal logits the first wins. All arrays are [num_rows].

    `largest` is NaN if any logit of the row is NaN; the token id is undefined then. `second` is the largest of the
    other logits: equal to `largest` at a tie, -inf if there is no other.
    """

    token_ids: NDArray[np.intp]
    largest: Numbers
    second: Numbers

    @property
    def gaps(self) -> Numbers:
        """The difference of the two largest logits of each row."""
        return self.largest - self.second

    def select_rows(self, start: int, end: int) -> TopTokens:
        """Return the rows [start, end)."""
        return TopTokens(self.token_ids[start:end], self.largest[start:end], self.second[start:end])

    def merge(self, other: TopTokens, offset: int) -> TopTokens:
        """Merge with the top tokens of the same rows over the next part of the vocabulary, which starts at `offset`."""
        ahead = (other.largest > self.largest) | (np.isnan(other.largest) & ~np.isnan(self.largest))
        return TopTokens(
            np.where(ahead, other.token_ids + offset, self.token_ids),
            np.where(ahead, other.largest, self.largest),
            np.where(ahead, np.maximum(self.largest, other.second), np.maximum(self.second, other.largest)),
        )


WORDS_PER_ROW = 4


def count_accepted(token_ids: NDArray[np.intp], draft: Sequence[int]) -> int:
    """Count the draft tokens before the first that differs from the chosen token of the same index."""
    count = min(len(token_ids), len(draft))
    departures = np.flatnonzero(token_ids[:count] != np.asarray(draft[:count], dtype=np.intp))
    return int(departures[0]) if len(departures) else count


@dataclass(frozen=True, slots=True)
class AcceptOutput:
    """The result of a step in one tensor, so that one copy brings it to the host.

    words: int32 [4 * num_rows + num_seqs] on any device: each row's chosen token, its top token, the bits of the top
    logit and of the second (float32), then the number of draft tokens that each sequence accepts. The memory may be
    reused: a replayed graph writes into it. The properties read words that are on the CPU.
    """

    words: Tensor
    num_rows: int

    @classmethod
    def empty(cls, num_rows: int, num_seqs: int, device: torch.device) -> AcceptOutput:
        """Allocate an output for a kernel to fill."""
        words = torch.empty(WORDS_PER_ROW * num_rows + num_seqs, dtype=torch.int32, device=device)
        return cls(words, num_rows)

    def to_host(self) -> AcceptOutput:
        """Copy to the CPU. This waits for the device, the only time in a step."""
        return AcceptOutput(self.words.cpu(), self.num_rows)

    def split_columns(self) -> tuple[Tensor, ...]:
        """Return views: chosen ids, top ids, largest and second logits, [num_rows] each, then counts [num_seqs]."""
        token_ids, likeliest, largest, second = self.words[: WORDS_PER_ROW * self.num_rows].view(WORDS_PER_ROW, -1)
        numbers = (each.view(torch.float32) for each in (largest, second))
        return token_ids, likeliest, *numbers, self.words[WORDS_PER_ROW * self.num_rows :]

    @property
    def token_ids(self) -> NDArray[np.intp]:
        """The chosen token of each row: the top token, or the one that was drawn."""
        return self._read_column(0).astype(np.intp)

    @property
    def top_tokens(self) -> TopTokens:
        """The top token of each row, whichever was chosen."""
        return TopTokens(self._read_column(1).astype(np.intp), self._read_column(2), self._read_column(3))

    @property
    def num_accepted(self) -> NDArray[np.intp]:
        """The number of draft tokens that each sequence accepts: [num_seqs]."""
        return self._read_column(4).astype(np.intp)

    def _read_column(self, column: int) -> NDArray[Any]:
        """As `split_columns`, by numpy: a view of it takes a tenth of torch's time."""
        assert self.words.device.type == "cpu", "what was chosen is read from a copy on the host"
        words, first = self.words.numpy(), column * self.num_rows
        part = words[first:] if column == WORDS_PER_ROW else words[first : first + self.num_rows]
        return part.view(np.float32) if column in (2, 3) else part
