"""The band of an alignment: the pairs of file and result lines that are near a shortest difference of the texts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from editor.diff import LineOp

MAX_WINDOW_CELLS = 16_000_000
"""Pairs of lines around one change (file times result); beyond it no reading is tried."""

_SLACK = 4
_MARGIN = 6
_MAX_SLIDE = 200


class AlignmentBand:
    """The pairs of lines of a file and a result through which a path may go: those near a shortest difference.

    Outside of windows around the changes only equal lines are paired. Inside, a pair counts if an alignment through it
    keeps at most a few lines less than the best one (longest common subsequences from both sides).
    """

    def __init__(self, old: Sequence[str], new: Sequence[str], ops: Sequence[LineOp]) -> None:
        self._diagonal = np.full(len(new) + 1, -1, np.int64)
        for op in ops:
            if op.equal:
                size = op.a_end - op.a_start
                self._diagonal[op.b_start : op.b_end + 1] = np.arange(op.a_start, op.a_start + size + 1)
        windows = _find_windows(old, new, ops)
        self.is_too_large = any((a2 - a1 + 1) * (b2 - b1 + 1) > MAX_WINDOW_CELLS for a1, a2, b1, b2 in windows)
        self._window_of = np.full(len(new) + 1, -1, np.int64)
        self._windows = windows
        self._tables: list[bytes] = []
        if self.is_too_large:
            return
        for number, (a1, a2, b1, b2) in enumerate(windows):
            self._window_of[b1 : b2 + 1] = number
            self._tables.append(_mark_near_best(old[a1:a2], new[b1:b2]).tobytes())
        self._starts = [window[2] for window in windows]
        self._diagonals: list[int] = self._diagonal.tolist()
        self._numbers: list[int] = self._window_of.tolist()

    def has(self, old: int, new: int) -> bool:
        """Return whether a path may go through a pair of lines."""
        number = self._numbers[new]
        if number < 0:
            return self._diagonals[new] == old
        a1, a2, b1, b2 = self._windows[number]
        return a1 <= old <= a2 and self._tables[number][(old - a1) * (b2 - b1 + 1) + new - b1] > 0

    def is_in_window(self, new: int) -> bool:
        """Return whether a line of the result is in a window around a change."""
        return self._numbers[new] >= 0

    def find_next_window(self, new: int) -> int:
        """Return the first line of the result from `new` on that is in a window, or the number of lines."""
        row = bisect_left(self._starts, new)
        return self._starts[row] if row < len(self._starts) else len(self._numbers) - 1

    def find_twin(self, new: int) -> int:
        """Return the line of the file that is paired with a line of the result outside of windows, -1 for none."""
        return self._diagonals[new]

    def find_last_twin(self, new: int) -> int:
        """Return the last line of the file that may be paired with a line of the result."""
        number = self._numbers[new]
        return self._windows[number][1] if number >= 0 else int(self._diagonals[new])


def _find_windows(old: Sequence[str], new: Sequence[str], ops: Sequence[LineOp]) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    for op in ops:
        if op.equal:
            continue
        up, down = _count_slides(old, op.a_start, op.a_end), _count_slides(new, op.b_start, op.b_end)
        above, below = max(up[0], down[0]) + _MARGIN, max(up[1], down[1]) + _MARGIN
        above = min(above, op.a_start, op.b_start)
        below = min(below, len(old) - op.a_end, len(new) - op.b_end)
        one = (op.a_start - above, op.a_end + below, op.b_start - above, op.b_end + below)
        while found and (found[-1][1] >= one[0] or found[-1][3] >= one[2]):
            last = found.pop()
            one = (min(last[0], one[0]), max(last[1], one[1]), min(last[2], one[2]), max(last[3], one[3]))
        found.append(one)
    return found


def _count_slides(lines: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Return by how many lines a run could be moved up and down with the same text."""
    if start == end:
        return 0, 0
    up = down = 0
    while up < _MAX_SLIDE and start - up > 0 and lines[start - up - 1] == lines[end - up - 1]:
        up += 1
    while down < _MAX_SLIDE and end + down < len(lines) and lines[start + down] == lines[end + down]:
        down += 1
    return up, down


def _mark_near_best(old: Sequence[str], new: Sequence[str]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    ids: dict[str, int] = {}
    left = np.array([ids.setdefault(key, len(ids)) for key in old], np.int64)
    right = np.array([ids.setdefault(key, len(ids)) for key in new], np.int64)
    equal = left[:, None] == right
    # The longest common subsequences of all suffixes, and of all prefixes: those of the suffixes of the reversed texts.
    behind, before = _compute_lcs_lengths(np.stack([equal, equal[::-1, ::-1]], axis=1))
    near: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = (before[::-1, ::-1] + behind) >= behind[0, 0] - _SLACK
    return near


def _compute_lcs_lengths(
    equal: np.ndarray[tuple[int, int, int], np.dtype[np.bool_]],
) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
    """Return the lengths of the longest common subsequences of all ends of two sequences, for several pairs at once.

    `equal` has the shape [lines of the first sequence, pairs, lines of the second sequence].
    """
    size, many, width = equal.shape
    table = np.zeros((many, size + 1, width + 1), np.int32)
    for at in range(size - 1, -1, -1):
        below = table[:, at + 1]
        row = np.maximum(below[:, :-1], below[:, 1:] + equal[at])
        table[:, at, :-1] = np.maximum.accumulate(row[:, ::-1], axis=1)[:, ::-1]
    return table
