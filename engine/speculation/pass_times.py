"""How long a pass over so many rows takes on this machine, as measured and then corrected by the passes that run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise

import numpy as np

KNOTS = (1, 4, 16, 64, 128, 256, 512, 1024)
"""Rows for which a time is kept; between them it is linear."""

NUM_TABLED = 2048
"""For fewer rows than that, the times are looked up."""

_TABLED = np.arange(1, NUM_TABLED)

DEFAULT_SECONDS = {1: 0.065, 1024: 1.088}
"""A pass over 64 rows costs about two single ones: what is assumed where nothing was measured."""

LEVEL_RATE = 0.2
SHAPE_RATE = 0.1
"""How far one pass moves the level of all times, and those for about as many rows. A slower machine, or a longer
context, shows in passes of all sizes, and the level takes it up before the shape has changed much: only the shape
tells how long a draft pays. So times that a loaded machine gave wear away, and load that comes and goes does little."""

REACH = 6.0
"""One pass also moves the times for other numbers of rows, the farther the less, and none at 2 ** 6 times as many: they
may never be run, and are likely to be wrong by the same."""

LEAST_SLOPE = 1 / 4096
"""Of a single pass's time, what each row costs at least behind all that was measured."""

LARGEST_ERROR = 0.7
"""One pass counts as at most twice too slow or too fast."""


class PassTimes:
    """T(rows), in seconds, of a pass with the scores of all its rows: positive, growing, piecewise linear.

    It takes passes for alike that have equally many rows, whoever they belong to. A long context makes rows dearer, by
    a third at 3,000 tokens on the machines measured, and single rows as well as many: that is left to the level.
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
        self._level = 0.0
        self._shape = [math.log(_on_line(known, rows)) for rows in KNOTS]
        self._settle()

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

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a pass that ran; one that took no time teaches nothing."""
        if num_rows < 1 or seconds <= 0.0:
            return
        error = math.log(seconds / self(num_rows))
        error = max(-LARGEST_ERROR, min(LARGEST_ERROR, error))
        self._level += LEVEL_RATE * error
        for place, rows in enumerate(KNOTS):
            nearness = max(0.0, 1.0 - abs(math.log2(rows / num_rows)) / REACH)
            self._shape[place] += SHAPE_RATE * error * nearness
        self._settle()

    def differs(self, seconds: Mapping[int, float], share: float) -> bool:
        """Whether a pass of some size, measured in single passes, takes another time than in `seconds`, by a share."""
        own = self.seconds
        return any(abs(own[rows] / own[1] / (seconds[rows] / seconds[1]) - 1.0) > share for rows in KNOTS)

    def _settle(self) -> None:
        times = list(accumulate((math.exp(self._level + each) for each in self._shape), max))
        self._knots = list(zip(KNOTS, times, strict=True))
        slopes = [(late - early) / (more - fewer) for (fewer, early), (more, late) in pairwise(self._knots)]
        self._least_slope, self._last_price = min(slopes), slopes[-1]
        tail = _on_line(self._knots, NUM_TABLED)
        self._table = [0.0, *np.interp(_TABLED, (*KNOTS, NUM_TABLED), (*times, tail)).tolist()]


MEASURED = (1, 64, 16, 256)
"""Rows of the passes that are measured at the start, the most telling first."""

REPEATS = 3


def measured(
    run: Callable[[int], object], clock: Callable[[], float], most: int = max(MEASURED), budget_s: float = 1.0
) -> PassTimes:
    """Times of `run(num_rows)` for up to `most` rows, each the smallest of some: what else runs can only add to it.

    The first pass of a size does not count if there is time for a second, for it makes kernels and touches memory. A
    size that would take too long is left out, and all are run again while that is within the budget. Where the clock
    stands still, the default holds.
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
            times = PassTimes(seconds)
    while clock() - start + sum(seconds.values()) <= budget_s:
        seconds = {num_rows: min(least, _timed(run, num_rows, clock)) for num_rows, least in seconds.items()}
    return PassTimes(seconds)


def least_seconds(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    """The time of the quickest of some passes."""
    return min(_timed(run, num_rows, clock) for _ in range(REPEATS))


def _timed(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    started = clock()
    run(num_rows)
    return clock() - started


def _growing(known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """With each time at least that for fewer rows, and not flat at the end, where noise would make all rows free."""
    times = list(accumulate((time for _, time in known), max))
    (fewer, _), (more, _) = known[-2:]
    mean = (times[-1] - times[0]) / (more - known[0][0])
    times[-1] = max(times[-1], times[-2] + max(0.5 * mean, LEAST_SLOPE * times[0]) * (more - fewer))
    return [(rows, time) for (rows, _), time in zip(known, times, strict=True)]


def _on_line(knots: list[tuple[int, float]], num_rows: int) -> float:
    """Linear between the knots, and on through the last two."""
    place = min(max(bisect_right(knots, num_rows, key=lambda knot: knot[0]), 1), len(knots) - 1)
    (fewer, early), (more, late) = knots[place - 1], knots[place]
    return early + (late - early) / (more - fewer) * (num_rows - fewer)
