"""The measured time of a step by its number of rows, its file, and its corrections."""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kernels.atomic_file import replace_file

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


FORMAT = 2
"""Of the file; one of another format is not read."""

MAX_BYTES = 1 << 20
"""One that is longer is none of ours."""


@dataclass(frozen=True, slots=True)
class PassTimesFile:
    """`folder` need not exist; `model` and `machine` say what the times are of: those of others are not read."""

    folder: Path
    model: str
    machine: str

    @property
    def path(self) -> Path:
        """Named after what it is for, so that several models and machines share a folder."""
        name = blake2b(json.dumps([FORMAT, self.model, self.machine]).encode(), digest_size=8).hexdigest()
        return self.folder / f"{name}.json"

    def read(self) -> PassTimes | None:
        """What is kept; None where there is nothing, or nothing that is whole and of this model and machine."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # whatever lies there
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
            with os.fdopen(descriptor, "rb") as file:
                kept = json.loads(file.read(MAX_BYTES))
            seconds = {int(rows): _checked(each) for rows, each in kept["seconds"].items()}
            is_ours = (kept["format"], kept["model"], kept["machine"]) == (FORMAT, self.model, self.machine)
            if is_ours and tuple(seconds) == KNOTS:
                return PassTimes(seconds)
        return None

    def write(self, times: PassTimes) -> None:
        """Keep them, all or nothing; where that cannot be done, the next start measures again."""
        content = {"format": FORMAT, "model": self.model, "machine": self.machine, "seconds": times.seconds}
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, [json.dumps(content).encode()])


def _checked(seconds: Any) -> float:
    if not 0.0 < seconds < math.inf:  # a NaN fails too
        raise ValueError(f"a pass of {seconds} s")
    return float(seconds)


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
