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
SHAPE_RATE = 0.05
"""How far one pass moves the level of all times, and those for about as many rows. A slower machine, or a longer
context, shows in passes of all sizes, and the level takes it up before the shape has changed much: only the shape
tells how long a draft pays. So times that a loaded machine gave wear away, and load that comes and goes does little."""

LARGEST_ERROR = 1.0
"""One pass counts as at most e times too slow or too fast."""


class PassTimes:
    """T(rows), in seconds, of a pass with the scores of all its rows: positive, growing, piecewise linear.

    It takes passes for alike that have equally many rows, whoever they belong to. A long context makes rows dearer, by
    a third at 3,000 tokens on the machines measured, and single rows as well as many: that is left to the level.
    """

    def __init__(self, seconds: Mapping[int, float] = DEFAULT_SECONDS) -> None:
        """`seconds` by rows, for one row at least; the other knots lie on the line through the nearest two."""
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
        for place, weight in _nearest(num_rows):
            self._shape[place] += SHAPE_RATE * error * weight
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


def measured(run: Callable[[int], object], clock: Callable[[], float], budget_s: float = 1.0) -> PassTimes:
    """Times of `run(num_rows)`, each the smallest of some: whatever else the machine does can only add to it.

    The first pass of a size is left out, for it makes kernels and touches memory; where one pass alone is over the
    budget, it has to do. Sizes that no time is left for are extrapolated, and corrected once such passes run.
    """
    end = clock() + budget_s
    seconds: dict[int, float] = {}
    for num_rows in MEASURED:
        first = _timed(run, num_rows, clock)
        if clock() + first > end and seconds:
            break
        again = [_timed(run, num_rows, clock)]
        while len(again) < REPEATS and clock() + again[-1] <= end:
            again.append(_timed(run, num_rows, clock))
        seconds[num_rows] = min(again)
    return PassTimes(seconds) if seconds[1] > 0.0 else PassTimes()


MEASURED = (1, 8, 64, 256)
REPEATS = 4


def _timed(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    started = clock()
    run(num_rows)
    return clock() - started


def _growing(known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """With each time at least that for fewer rows, and not flat at the end, where noise would make all rows free."""
    times = list(accumulate((time for _, time in known), max))
    if len(known) > 1:
        (fewer, _), (more, _) = known[-2:]
        mean = (times[-1] - times[0]) / (more - known[0][0])
        times[-1] = max(times[-1], times[-2] + 0.5 * mean * (more - fewer))
    return [(rows, time) for (rows, _), time in zip(known, times, strict=True)]


def _on_line(knots: list[tuple[int, float]], num_rows: int) -> float:
    """Linear between the knots, and on through the last two; proportional to the rows where there is but one."""
    if len(knots) == 1:
        return knots[0][1] * num_rows
    place = min(max(bisect_right(knots, num_rows, key=lambda knot: knot[0]), 1), len(knots) - 1)
    (fewer, early), (more, late) = knots[place - 1], knots[place]
    return early + (late - early) / (more - fewer) * (num_rows - fewer)


def _nearest(num_rows: int) -> list[tuple[int, float]]:
    """The knots beside `num_rows`, by place, with weights that sum to one."""
    if num_rows >= KNOTS[-1]:
        return [(len(KNOTS) - 1, 1.0)]
    place = bisect_right(KNOTS, num_rows)
    share = (num_rows - KNOTS[place - 1]) / (KNOTS[place] - KNOTS[place - 1])
    return [(place - 1, 1.0 - share), (place, share)]
