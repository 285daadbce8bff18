"""Where a merge and the original differ, and which place of one is which of the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Indel

MAX_MATRIX_BITS = 400_000_000
"""rapidfuzz keeps a bit for each pair of tokens between the common ends: 50 MB at most."""

MIN_COMMON = 4
"""Hunks with fewer common tokens between them are one: single brackets and line ends are common by chance."""

NEAR = 64
"""Hunks with fewer common tokens between them are taken or left together."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Places [start, end) of a merge stand where the original has [old_start, old_end)."""

    start: int
    end: int
    old_start: int
    old_end: int


class Hunks:
    """The hunks of a merge, whose first token is at place `start`, against the original, at `old_start`."""

    def __init__(self, merge: Sequence[int], original: Sequence[int], start: int, old_start: int) -> None:
        self.hunks = [
            Hunk(start + one.start, start + one.end, old_start + one.old_start, old_start + one.old_end)
            for one in _found(merge, original)
        ]
        self._first = Hunk(start, start, old_start, old_start)
        self._starts = [hunk.start for hunk in self.hunks]
        self._old_starts = [hunk.old_start for hunk in self.hunks]
        self._regions = _joined(self.hunks, NEAR)
        self._region_starts = [region.old_start for region in self._regions]

    def at(self, place: int) -> Hunk | None:
        """The hunk that a place of the merge is in or begins."""
        hunk = self._before(place, self._starts)
        return hunk if hunk.start <= place < max(hunk.end, hunk.start + 1) and hunk is not self._first else None

    def region_at_old(self, place: int) -> Hunk | None:
        """The group of hunks in whose part of the original a place is."""
        number = bisect_right(self._region_starts, place)
        region = self._regions[number - 1] if number else self._first
        return region if region.old_start <= place < region.old_end else None

    def old_place(self, place: int) -> int:
        """The place in the original; within a hunk, as far behind its beginning, or its end."""
        hunk = self._before(place, self._starts)
        if place < hunk.end:
            return min(hunk.old_start + place - hunk.start, hunk.old_end)
        return hunk.old_end + place - hunk.end

    def new_place(self, old_place: int) -> int:
        """The place in the merge of a place in the original that is in no hunk; in one, the place behind the hunk."""
        hunk = self._before(old_place, self._old_starts)
        return hunk.end if old_place < hunk.old_end else hunk.end + old_place - hunk.old_end

    def touches(self, start: int, end: int) -> bool:
        """Whether a hunk has tokens at places [start, end) of the merge."""
        return self._before(end - 1, self._starts).end > start

    def _before(self, place: int, starts: list[int]) -> Hunk:
        number = bisect_right(starts, place)
        return self.hunks[number - 1] if number else self._first


def _found(merge: Sequence[int], original: Sequence[int]) -> list[Hunk]:
    first = _common_len(merge, original)
    room = min(len(merge), len(original)) - first
    last = _common_len(merge[::-1][:room], original[::-1][:room])
    new, old = merge[first : len(merge) - last], original[first : len(original) - last]
    if len(new) * len(old) > MAX_MATRIX_BITS:
        return [Hunk(first, first + len(new), first, first + len(old))]
    hunks: list[Hunk] = []
    for op in Indel.opcodes(list(old), list(new)):
        if op.tag == "equal":
            continue
        hunks.append(Hunk(first + op.dest_start, first + op.dest_end, first + op.src_start, first + op.src_end))
    return _joined(hunks, MIN_COMMON)


def _common_len(one: Sequence[int], other: Sequence[int]) -> int:
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(differ[0]) if len(differ) else size


def _joined(hunks: Sequence[Hunk], min_common: int) -> list[Hunk]:
    """The hunks, those with fewer common tokens between them made one."""
    joined: list[Hunk] = []
    for hunk in hunks:
        if joined and hunk.start - joined[-1].end < min_common:
            above = joined.pop()
            joined.append(Hunk(above.start, hunk.end, above.old_start, hunk.old_end))
        else:
            joined.append(hunk)
    return joined
