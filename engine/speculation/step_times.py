"""How long a pass over so many rows takes on this machine, as measured, rounded so that two starts agree."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise

import numpy as np

KNOTS = (1, 2, 4, 16, 32, 64, 128, 256, 512, 1024)
"""Rows for which a time is kept; between them it is linear. A second row costs more than each of those behind it: a
product with one vector takes another way than one with several."""

NUM_TABLED = 2048
"""For fewer rows than that, the times are looked up."""

_TABLED = np.arange(1, NUM_TABLED)

DEFAULT_SECONDS = {1: 0.065, 1024: 1.088}
"""A pass over 64 rows costs about two single ones, as on two cores with AMX: what is assumed where nothing was
measured."""

LEAST_SLOPE = 1 / 4096
"""Of a single pass's time, what each row costs at least behind all that was measured."""

STEPS_AN_OCTAVE = 8
"""Measured times are multiples of that of a single pass by powers of 2 ** (1/8), so that two starts mostly find the
same. At most 4.4 % wrong, and where lengths are chosen by them, at most 3 % slower."""


class PassTimes:
    """T(rows), in seconds, of a pass with the scores of all its rows: positive, growing, piecewise linear.

    It takes passes for alike that have equally many rows, whoever they belong to. A long context makes rows dearer,
    single rows more than each of many; that is left out, which makes drafts a little shorter than would be best.
    """

    def __init__(self, seconds: Mapping[int, float] = DEFAULT_SECONDS) -> None:
        """`seconds` by rows, for one row at least; the other knots lie on the line through the nearest two.

        If there are no two, the times grow as the default ones do.
        """
        if len(seconds) == 1:
            seconds = {rows: each * seconds[1] / DEFAULT_SECONDS[1] for rows, each in DEFAULT_SECONDS.items()}
        known = _growing(sorted(seconds.items()))
        assert known[0][0] == 1, "the time of a single row is what all others are compared with"
        assert known[0][1] > 0.0, f"a pass takes {known[0][1]} s"
        self._set([_on_line(known, rows) for rows in KNOTS])

    def __call__(self, num_rows: int) -> float:
        """Seconds of a pass over `num_rows` rows; 0 for none."""
        return self._table[num_rows] if num_rows < NUM_TABLED else _on_line(self._knots, num_rows)

    def prices(self, num_rows: int) -> Iterator[float]:
        """What each further row adds to a pass over `num_rows` rows, in seconds."""
        for early, late in pairwise(self._table[num_rows:]):
            yield late - early
        while True:
            yield self._last_price

    @property
    def seconds(self) -> dict[int, float]:
        """By rows, what another one can be made of."""
        return dict(self._knots)

    @property
    def least_slope(self) -> float:
        """Seconds that a further row costs at least."""
        return self._least_slope

    def replace(self, other: PassTimes) -> None:
        """Be the same as `other` from now on, for all who hold this one."""
        self._set([time for _, time in other._knots])

    def _set(self, seconds: list[float]) -> None:
        times = list(accumulate(seconds, max))
        self._knots = list(zip(KNOTS, times, strict=True))
        slopes = [(late - early) / (more - fewer) for (fewer, early), (more, late) in pairwise(self._knots)]
        self._least_slope, self._last_price = min(slopes), slopes[-1]
        tail = _on_line(self._knots, NUM_TABLED)
        self._table = [0.0, *np.interp(_TABLED, (*KNOTS, NUM_TABLED), (*times, tail)).tolist()]


def on_grid(seconds: Mapping[int, float]) -> dict[int, float]:
    """The times, each rounded to a step of the grid above that of a single pass, which stays.

    Example: 1: 20 ms, 64: 93 ms is 2 ** (17.7 / 8) times as long, and so 64: 95.1 ms, 2 ** (18 / 8).
    """
    single = seconds[1]
    steps = {rows: round(STEPS_AN_OCTAVE * math.log2(each / single)) for rows, each in seconds.items()}
    return {rows: single * 2.0 ** (number / STEPS_AN_OCTAVE) for rows, number in steps.items()}


MEASURED = (1, 2, 64, 16, 256, 32)
"""Rows of the passes that are measured at the start, the most telling first."""

SLOPE_ROWS = 16
"""Rows that the largest measured pass must have. A second row costs much more than each of those behind it, so where
the budget ended there (a large model, an overloaded machine), the line through both would make no draft worth its rows.
"""

REPEATS = 3


def measured(
    run: Callable[[int], object], clock: Callable[[], float], most: int = max(MEASURED), budget_s: float = 1.0
) -> PassTimes:
    """Times of `run(num_rows)` for up to `most` rows, each the smallest of some: what else runs can only add to it.

    The first pass of a size does not count if there is time for a second, for it makes kernels and touches memory. A
    single pass is run again behind every size, for all are told by it, and what held it up once would make all others
    look cheap. A size that would take too long is left out, and all are run again while that is within the budget.
    Where none of SLOPE_ROWS or more was in time, rows cost what they do by default, told in single passes. Where the
    clock stands still, the default holds.
    """
    start, times = clock(), PassTimes()
    seconds: dict[int, float] = {}
    for num_rows in MEASURED:
        if num_rows <= most and clock() - start + 2.0 * times(num_rows) * bool(seconds) <= 1.5 * budget_s:
            first = _timed(run, num_rows, clock)
            in_time = clock() - start + first <= 1.5 * budget_s
            seconds[num_rows] = _timed(run, num_rows, clock) if in_time else first
            if seconds[num_rows] <= 0.0:
                return PassTimes()
            if num_rows > 1 and in_time:
                seconds[1] = min(seconds[1], _timed(run, 1, clock))
            times = PassTimes(seconds)
    while clock() - start + sum(seconds.values()) <= budget_s:
        seconds = {num_rows: min(least, _timed(run, num_rows, clock)) for num_rows, least in seconds.items()}
    return PassTimes(on_grid(seconds) if max(seconds) >= SLOPE_ROWS else {1: seconds[1]})


def least_seconds(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    """The time of the quickest of some passes."""
    return min(_timed(run, num_rows, clock) for _ in range(REPEATS))


def _timed(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    started = clock()
    run(num_rows)
    return clock() - started


def _growing(known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """With each time at least that for fewer rows, and not flat at the end, where noise would make all rows free.

    What it gives stays as it is if it is given again.
    """
    times = list(accumulate((time for _, time in known), max))
    (fewer, _), (more, _) = known[-2:]
    mean = (times[-2] - times[0]) / max(1, fewer - known[0][0])
    times[-1] = max(times[-1], times[-2] + max(0.5 * mean, LEAST_SLOPE * times[0]) * (more - fewer))
    return [(rows, time) for (rows, _), time in zip(known, times, strict=True)]


def _on_line(knots: list[tuple[int, float]], num_rows: int) -> float:
    """Linear between the knots, and on through the last two."""
    place = min(max(bisect_right(knots, num_rows, key=lambda knot: knot[0]), 1), len(knots) - 1)
    (fewer, early), (more, late) = knots[place - 1], knots[place]
    return early + (late - early) / (more - fewer) * (num_rows - fewer)
