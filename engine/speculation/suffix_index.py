"""Finds where the tail of the output stands in the known texts, and how far back it stands there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NO_TOKEN = -1
"""Stands before, between and behind the texts; no token is equal to it, so that no match runs across it."""

Places = NDArray[np.int64]


class SuffixIndex:
    """Token sequences laid end to end; a place is where the next token to copy stands, counted through all of them.

    Nothing is built beforehand: a search is a few passes of numpy over the tokens, 60 us over 20,000, and is needed
    only where the model departs from a draft. The last sequence grows with the output.
    """

    def __init__(self, sources: Sequence[Sequence[int] | Places], room: int = 1024) -> None:
        self.starts: list[int] = []
        parts: list[Sequence[int] | Places] = [[NO_TOKEN]]
        end = 1
        for source in [*sources, []]:  # the last one is the output
            self.starts.append(end)
            parts += [source, [NO_TOKEN]]
            end += len(source) + 1
        self._ids = np.full(end + room, NO_TOKEN, dtype=np.int64)
        self._ids[:end] = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        self._end = end - 1

    @property
    def end(self) -> int:
        """The place behind all that is known of the output."""
        return self._end

    def grow(self, token_ids: Sequence[int]) -> None:
        """Append to the output."""
        end = self._end + len(token_ids)
        if end >= len(self._ids):
            larger = np.full(2 * end, NO_TOKEN, dtype=np.int64)
            larger[: self._end] = self._ids[: self._end]
            self._ids = larger
        self._ids[self._end : end] = token_ids
        self._end = end

    def __getitem__(self, places: slice) -> list[int]:
        """The tokens at places [start, stop)."""
        found: list[int] = self._ids[places].tolist()
        return found

    def token(self, place: int) -> int:
        """The token at a place, NO_TOKEN at a text's end."""
        return int(self._ids[place])

    def search(self, tail: Sequence[int], longest: int) -> tuple[Places, Places]:
        """All places behind the last token of `tail`, ascending, and how many of its last tokens stand before each.

        Lengths are in [1, min(len(tail), longest)]. The output's own end, behind which nothing is known, is no place.
        """
        if not tail:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        places = np.flatnonzero(self._ids[: self._end - 1] == tail[-1]) + 1
        lengths = np.ones(len(places), dtype=np.int64)
        alive = np.arange(len(places))
        for length in range(2, min(len(tail), longest) + 1):
            # the NO_TOKEN at place 0 ends every match before a place could be negative
            alive = alive[self._ids[places[alive] - length] == tail[-length]]
            if not len(alive):
                break
            lengths[alive] = length
        return places, lengths
