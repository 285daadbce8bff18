"""One sequence's rows of a pass as paged attention has them: where each stands, is written, and what it sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.paged_attention import TREE_BITS

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fork:
    """A draft's branch: its tokens stand at the positions from `at` on and lie in the places from `start` on."""

    at: int
    start: int
    num_tokens: int


class SequenceRows:
    """The rows of one sequence and its draft, and behind them those of its branch.

    A place is where a token's KV lies in the sequence's pages. It is the token's position, but for the branch, whose
    tokens lie behind the draft's. What a row sees are the places up to its own, of these the last `window`; one behind
    the fork sees those of its own side, which a tree mask says.
    """

    def __init__(
        self, token_ids: Sequence[int], positions: Sequence[int], table: Sequence[int], fork: Fork | None = None
    ) -> None:
        """`positions` are those of all rows, ascending up to the branch; `table` is the sequence's page table."""
        self.token_ids = np.asarray(token_ids, dtype=np.int64)
        self.positions = np.asarray(positions, dtype=np.int64)
        self.pages = np.asarray(table, dtype=np.int32)
        self.fork = fork

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_places(self) -> int:
        """Places up to the last one that holds a key."""
        return int(self.positions[-1]) + 1 + (0 if self.fork is None else self.fork.start - self.fork.at)

    @property
    def places(self) -> Numbers:
        """Where each row's KV is written."""
        if self.fork is None:
            return self.positions
        places = self.positions.copy()
        places[-self.fork.num_tokens :] += self.fork.start - self.fork.at
        return places

    def slots(self, page_size: int) -> Numbers:
        """The places as slots of the pool."""
        places = self.places
        return self.pages[places // page_size].astype(np.int64) * page_size + places % page_size

    def tree_start(self, window: int | None) -> int:
        """The place from which on a mask says what is seen; a window moves with each row, so its mask has all."""
        if self.fork is None:
            return self.num_places
        return self.fork.at if window is None else max(0, int(self.positions[0]) + 1 - window)

    def num_words(self, window: int | None) -> int:
        """Words of the mask: none without a fork."""
        return -(-(self.num_places - self.tree_start(window)) // TREE_BITS)

    def key_ends(self, window: int | None) -> Numbers:
        """The place behind the last one that each row sees without its mask."""
        if self.fork is not None and window is not None:
            return np.zeros_like(self.positions)
        return np.minimum(self.positions + 1, self.tree_start(window))

    def tree(self, window: int | None, num_words: int) -> Numbers:
        """The mask, [num_rows, num_words].

        With 3 tokens behind a fork at place 10 and a branch of 2, whose places are 13 and 14, the rows have
        00001, 00011, 00111 and 01000, 11000: bit k is place 10 + k.
        """
        if self.fork is None:
            return np.zeros((self.num_rows, num_words), dtype=np.int64)
        fork, start = self.fork, self.tree_start(window)
        first_seen = np.zeros_like(self.positions) if window is None else np.maximum(self.positions + 1 - window, 0)
        is_branch = np.arange(self.num_rows) >= self.num_rows - fork.num_tokens
        own_first = np.where(is_branch, fork.start + np.maximum(first_seen - fork.at, 0), first_seen)
        shared_end = np.where(is_branch, fork.at, 0)
        return _bits(own_first - start, self.places + 1 - start, num_words) | _bits(
            first_seen - start, shared_end - start, num_words
        )


def _bits(first: Numbers, end: Numbers, num_words: int) -> Numbers:
    """Words in which the bits [first, end) of each row are set, as far as they are not below 0."""
    before = np.arange(num_words) * TREE_BITS
    low, high = (np.clip(border[:, None] - before, 0, TREE_BITS).astype(np.uint64) for border in (first, end))
    one = np.uint64(1)
    words: Numbers = ((one << np.maximum(low, high)) - (one << low)).astype(np.int64)
    return words
