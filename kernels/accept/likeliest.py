"""The likeliest token of each of many rows, how likely it is and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
