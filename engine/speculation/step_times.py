"""The measured time of a step by its number of rows, and the file that keeps it."""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.atomic_file import replace_file

KNOTS = (1, 2, 4, 16, 32, 64, 128, 256, 512, 1024)
"""Row counts for which a time is kept; between them it is linear. The first rows differ most: a second one costs more
than each later one where a product with one vector takes another way, and up to six cost what one does where they
share the weights that are read from memory."""

NUM_TABLED = 2048
"""For fewer rows than this, the times are looked up."""

_TABLED = np.arange(1, NUM_TABLED)

DEFAULT_SECONDS = {1: 0.065, 1024: 1.088}
"""A pass over 64 rows costs about two single-row passes, as on two cores with AMX: assumed if nothing was measured."""

LEAST_SLOPE = 1 / 4096
"""The least cost of each row beyond those measured, as a share of a single-row pass."""

STEPS_AN_OCTAVE = 8
"""Measured times are multiples of that of a single-row pass by powers of 2 ** (1/8), so that two starts mostly find the
same. This is at most 4.4 % wrong, and makes chosen lengths at most 3 % slower."""


class StepTimes:
    """T(rows), in seconds, of a pass that scores all its rows: positive, growing, piecewise linear.

    Passes with equally many rows are taken as equal, whichever sequences they belong to. A long context makes rows more
    expensive, single ones more than many; this is left out, which makes drafts slightly too short.
    """

    def __init__(self, seconds: Mapping[int, float] = DEFAULT_SECONDS) -> None:
        """`seconds` by rows, at least for one row; the other knots lie on the line through the nearest two.

        With one time only, the times grow like the default ones.
        """
        if len(seconds) == 1:
            seconds = {rows: each * seconds[1] / DEFAULT_SECONDS[1] for rows, each in DEFAULT_SECONDS.items()}
        known = _make_growing(sorted(seconds.items()))
        assert known[0][0] == 1, "the time of a single row is what all others are compared with"
        assert known[0][1] > 0.0, f"a pass takes {known[0][1]} s"
        self._set([_interpolate(known, rows) for rows in KNOTS])

    def __call__(self, num_rows: int) -> float:
        """Return the seconds of a pass over `num_rows` rows; 0 for none."""
        return self._table[num_rows] if num_rows < NUM_TABLED else _interpolate(self._knots, num_rows)

    def get_prices(self, num_rows: int, count: int) -> NDArray[np.float64]:
        """Return what each of `count` further rows adds to a pass over `num_rows` rows, in seconds."""
        prices = self._prices[num_rows : num_rows + count]
        return np.pad(prices, (0, count - len(prices)), constant_values=self._last_price)

    @property
    def seconds(self) -> dict[int, float]:
        """The times by rows, from which an equal object can be built."""
        return dict(self._knots)

    @property
    def least_slope(self) -> float:
        """Seconds that a further row costs at least."""
        return self._least_slope

    def replace(self, other: StepTimes) -> None:
        """Take the times of `other`, for all holders of this object."""
        self._set([time for _, time in other._knots])

    def _set(self, seconds: list[float]) -> None:
        times = list(accumulate(seconds, max))
        self._knots = list(zip(KNOTS, times, strict=True))
        slopes = [(late - early) / (more - fewer) for (fewer, early), (more, late) in pairwise(self._knots)]
        self._least_slope, self._last_price = min(slopes), slopes[-1]
        tail = _interpolate(self._knots, NUM_TABLED)
        self._table = [0.0, *np.interp(_TABLED, (*KNOTS, NUM_TABLED), (*times, tail)).tolist()]
        self._prices = np.diff(self._table)


def round_to_grid(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return the times, each rounded to a step of the grid above that of a single-row pass, which stays.

    Example: 1: 20 ms, 64: 93 ms is 2 ** (17.7 / 8) times as long, and so 64: 95.1 ms, 2 ** (18 / 8).
    """
    single = seconds[1]
    steps = {rows: round(STEPS_AN_OCTAVE * math.log2(each / single)) for rows, each in seconds.items()}
    return {rows: single * 2.0 ** (number / STEPS_AN_OCTAVE) for rows, number in steps.items()}


MEASURED = (1, 2, 4, 64, 16, 256, 32)
"""Rows of the passes that are measured at the start, the most informative first."""

MEASURED_ON_CARD = (*MEASURED, 512, 1024)
"""The same on a card, where a long copy is one pass of up to a thousand rows."""

SLOPE_ROWS = 16
"""Rows that the largest measured pass must have: what the first rows cost tells nothing about many."""

REPEATS = 3


def measure_times(
    run: Callable[[int], object],
    clock: Callable[[], float],
    most: int = max(MEASURED_ON_CARD),
    budget_s: float = 1.0,
    sizes: Sequence[int] = MEASURED,
) -> StepTimes:
    """Return times of `run(num_rows)` for up to `most` rows, each the least of several: other work can only add to it.

    The first pass of a size does not count if there is time for a second, since it compiles kernels and touches memory.
    A single-row pass is repeated after every size, because all times are relative to it, and one delay would make all
    others look cheap. A size that would take too long is left out, and all are repeated within the budget. If no size
    of SLOPE_ROWS or more was in time, one pass of so many rows is run all the same, since what rows cost differs
    thirtyfold between machines; beside it, sizes that were run only once do not count. If `most` is less, rows have
    their default cost relative to a single-row pass. If the clock stands still, the default times are returned.
    """
    start, times = clock(), StepTimes()
    seconds: dict[int, float] = {}
    repeated: dict[int, float] = {}
    for num_rows in sizes:
        if num_rows <= most and clock() - start + 2.0 * times(num_rows) * bool(seconds) <= 1.5 * budget_s:
            first = _time_run(run, num_rows, clock)
            in_time = clock() - start + first <= 1.5 * budget_s
            seconds[num_rows] = _time_run(run, num_rows, clock) if in_time else first
            if seconds[num_rows] <= 0.0:
                return StepTimes()
            if num_rows > 1 and in_time:
                seconds[1] = min(seconds[1], _time_run(run, 1, clock))
                repeated[num_rows] = seconds[num_rows]
            times = StepTimes(seconds)
    if max(seconds) < SLOPE_ROWS <= most:
        many = _time_run(run, SLOPE_ROWS, clock)
        seconds = {1: min(seconds[1], _time_run(run, 1, clock)), **repeated, SLOPE_ROWS: many}
    while clock() - start + sum(seconds.values()) <= budget_s:
        seconds = {num_rows: min(least, _time_run(run, num_rows, clock)) for num_rows, least in seconds.items()}
    return StepTimes(round_to_grid(seconds) if max(seconds) >= SLOPE_ROWS else {1: seconds[1]})


def measure_least_seconds(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    """Return the time of the quickest of several passes."""
    return min(_time_run(run, num_rows, clock) for _ in range(REPEATS))


def _time_run(run: Callable[[int], object], num_rows: int, clock: Callable[[], float]) -> float:
    started = clock()
    run(num_rows)
    return clock() - started


def _make_growing(known: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Make each time at least that for fewer rows, and not flat at the end, where noise would make all rows free.

    Applied again, it changes nothing.
    """
    times = list(accumulate((time for _, time in known), max))
    (fewer, _), (more, _) = known[-2:]
    mean = (times[-2] - times[0]) / max(1, fewer - known[0][0])
    times[-1] = max(times[-1], times[-2] + max(0.5 * mean, LEAST_SLOPE * times[0]) * (more - fewer))
    return [(rows, time) for (rows, _), time in zip(known, times, strict=True)]


def _interpolate(knots: list[tuple[int, float]], num_rows: int) -> float:
    """Interpolate between the knots, and extrapolate through the last two."""
    place = min(max(bisect_right(knots, num_rows, key=lambda knot: knot[0]), 1), len(knots) - 1)
    (fewer, early), (more, late) = knots[place - 1], knots[place]
    return early + (late - early) / (more - fewer) * (num_rows - fewer)


FORMAT = 2
"""The format of the file; one of another format is not read."""

MAX_BYTES = 1 << 20
"""A longer file is not one of ours."""


@dataclass(frozen=True, slots=True)
class StepTimesFile:
    """The file of one model's times on one machine. `folder` need not exist."""

    folder: Path
    model: str
    machine: str

    @property
    def path(self) -> Path:
        """The path, named after model and machine, so that several of them share a folder."""
        name = blake2b(json.dumps([FORMAT, self.model, self.machine]).encode(), digest_size=8).hexdigest()
        return self.folder / f"{name}.json"

    def read(self) -> StepTimes | None:
        """Return the stored times; None if there are none, or none that are whole and of this model and machine."""
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # whatever lies there
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
            with os.fdopen(descriptor, "rb") as file:
                kept = json.loads(file.read(MAX_BYTES))
            seconds = {int(rows): _check_seconds(each) for rows, each in kept["seconds"].items()}
            is_ours = (kept["format"], kept["model"], kept["machine"]) == (FORMAT, self.model, self.machine)
            if is_ours and tuple(seconds) == KNOTS:
                return StepTimes(seconds)
        return None

    def write(self, times: StepTimes) -> None:
        """Store the times, all or nothing; if that fails, the next start measures again."""
        content = {"format": FORMAT, "model": self.model, "machine": self.machine, "seconds": times.seconds}
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, [json.dumps(content).encode()])


def _check_seconds(seconds: Any) -> float:
    if not 0.0 < seconds < math.inf:  # a NaN fails too
        raise ValueError(f"a pass of {seconds} s")
    return float(seconds)
