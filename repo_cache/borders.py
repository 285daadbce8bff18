"""Which of a text's many possible borders become borders: content-defined, so that an edit moves none far from it."""

from __future__ import annotations

from collections.abc import Sequence


def strongest(
    positions: Sequence[int], strengths: Sequence[int], start: int, end: int, *, apart: int, reach: int
) -> list[int]:
    """The borders in (start, end) at which to cut, in order. `positions` increase; equal strengths: the first counts.

    A border is in the running if no stronger one lies within `apart` of it, the two ends included. It is cut at if the
    stretch between the nearest stronger ones of these is longer than `reach`. So

    - pieces are at least `apart` long;
    - a piece is at most `reach` long, but where no border in it is in the running: the strongest of these would have
      all of the piece for its stretch;
    - whether a border is cut at can be told from what lies within `reach + apart` of it: an edit changes no cut
      that is farther away, as grouping by a running count would.

    This is content-defined chunking by local maxima (Bjørner, Blass and Gurevich: Content-dependent chunking for
    differential compression, the local maximum approach, 2010), with ranks above the hashes and a bound on the length.

    >>> strongest([10, 40, 44, 80], [5, 7, 9, 3], 0, 100, apart=20, reach=50)
    [44]
    """
    before, behind = _nearest_stronger(positions, strengths, start, end)
    running = [
        index
        for index, position in enumerate(positions)
        if position - before[index] >= apart and behind[index] - position >= apart
    ]
    kept = [positions[index] for index in running]
    before, behind = _nearest_stronger(kept, [strengths[index] for index in running], start, end)
    return [position for index, position in enumerate(kept) if behind[index] - before[index] > reach]


def _nearest_stronger(
    positions: Sequence[int], strengths: Sequence[int], start: int, end: int
) -> tuple[list[int], list[int]]:
    """For each border, where the nearest that is stronger stands on its left and on its right; else the end there."""
    before, behind = [start] * len(positions), [end] * len(positions)
    open_: list[int] = []  # borders to whose right none is stronger yet, strengths falling
    for index, strength in enumerate(strengths):
        while open_ and strengths[open_[-1]] < strength:
            behind[open_.pop()] = positions[index]
        if open_:
            before[index] = positions[open_[-1]]
        open_.append(index)
    return before, behind
