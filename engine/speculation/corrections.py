"""What passes that ran say against the times of passes: kept apart, until it is too much to go on with the old ones."""

from __future__ import annotations

import math

from engine.speculation.pass_times import KNOTS, PassTimes, on_grid

LEVEL_RATE = 0.2
SHAPE_RATE = 0.05
"""How far one pass moves the level of all times, and those for about as many rows. A slower machine, or a longer
context, shows in passes of all sizes, and the level takes it up before the shape has changed much: only the shape
tells how long a draft pays. So load that comes and goes does little to it."""

REACH = 6.0
"""One pass also moves the times for other numbers of rows, the farther the less, and none at 2 ** 6 times as many: they
may never be run, and are likely to be wrong by the same."""

LARGEST_ERROR = 0.7
"""One pass counts as at most twice too slow or too fast."""

BAND = 1.5
"""By that factor the times in use may be wrong against that of a single pass. Contexts of a few thousand tokens and
other work on the machine stay within it."""


class Corrections:
    """Of one set of times, which it does not change.

    `level` is what is known of the level beforehand, the logarithm of a factor. Where corrected times take the place of
    these, whoever goes on with them hands over this one's `level`: else the same error of the level would move the
    shape again and again, without a bound, while single passes run and no others.
    """

    def __init__(self, times: PassTimes, level: float = 0.0) -> None:
        self._times = times
        self._level = level
        self._shape = [0.0] * len(KNOTS)  # logarithms of factors

    def observe(self, num_rows: int, seconds: float) -> None:
        """Learn from a pass that ran; one that took no time teaches nothing."""
        if num_rows < 1 or seconds <= 0.0:
            return
        error = math.log(seconds / self._times(num_rows)) - self._level - self._shape_at(num_rows)
        error = max(-LARGEST_ERROR, min(LARGEST_ERROR, error))
        self._level += LEVEL_RATE * error
        for place, rows in enumerate(KNOTS):
            nearness = max(0.0, 1.0 - abs(math.log2(rows / num_rows)) / REACH)
            self._shape[place] += SHAPE_RATE * error * nearness

    @property
    def level(self) -> float:
        """The logarithm of the factor by which single passes differ from the times, and all from `corrected`."""
        return self._level + self._shape[0]

    @property
    def is_large(self) -> bool:
        """Whether a pass of some size, told in single passes, takes a time outside the band."""
        return max(abs(each - self._shape[0]) for each in self._shape) > math.log(BAND)

    @property
    def corrected(self) -> PassTimes:
        """The times as they should have been; that of a single pass stays, for lengths hardly depend on it."""
        single = self._times(1)
        factors = {rows: math.exp(each - self._shape[0]) for rows, each in zip(KNOTS, self._shape, strict=True)}
        seconds = PassTimes({rows: self._times(rows) * factor for rows, factor in factors.items()}).seconds
        return PassTimes(on_grid(seconds | {1: single}))

    def _shape_at(self, num_rows: int) -> float:
        """Of the nearest number of rows that a time is kept for."""
        nearest = min(range(len(KNOTS)), key=lambda place: abs(math.log2(KNOTS[place] / num_rows)))
        return self._shape[nearest]
