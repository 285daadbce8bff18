"""The shapes of passes: what decides how kernels are launched, and the few to which passes are padded for graphs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cuda.sequence_rows import SequenceRows

ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Rows of a graph. A pass over more of them takes so long that its launches do not show."""

SEQS = (1, 4, 16, 64)
"""Sequences of a graph in which any of them has several rows; an empty one costs a few programs that end at once."""

FEWEST_KEYS = 2048
"""Places of a graph's longest sequence: this, four times as many, and so on."""

MOST_WORDS = 32
"""Words of a tree mask in a graph; a longer fork runs without one."""


@dataclass(frozen=True, slots=True)
class PassShape:
    """Rows and sequences, the most rows and the most places of one of them, and the words of a tree mask (0: none)."""

    num_rows: int
    num_seqs: int
    most_queries: int
    most_keys: int
    num_words: int = 0

    @classmethod
    def of(cls, sequences: Sequence[SequenceRows], window: int | None) -> PassShape:
        """What these take and no more."""
        return cls(
            sum(each.num_rows for each in sequences),
            len(sequences),
            max(each.num_rows for each in sequences),
            max(each.num_places for each in sequences),
            max(each.num_words(window) for each in sequences),
        )

    @property
    def padded(self) -> PassShape | None:
        """The shape of the graph that such a pass is padded to; None: it is too large for any.

        Of decodes, a row each, rows and sequences are as many: attention takes another grid for them.
        """
        num_rows, is_decode = _next(ROWS, self.num_rows), self.most_queries == 1
        num_seqs = num_rows if is_decode else _next(SEQS, self.num_seqs)
        if num_rows is None or num_seqs is None or self.num_words > MOST_WORDS:
            return None
        most_keys = FEWEST_KEYS
        while most_keys < self.most_keys:
            most_keys *= 4
        num_words = 1 << (self.num_words - 1).bit_length() if self.num_words else 0
        return PassShape(num_rows, num_seqs, 1 if is_decode else num_rows, most_keys, num_words)

    def num_pages(self, page_size: int) -> int:
        """Columns of the page table."""
        return -(-self.most_keys // page_size)


def _next(sizes: Sequence[int], least: int) -> int | None:
    at = bisect_left(sizes, least)
    return sizes[at] if at < len(sizes) else None
