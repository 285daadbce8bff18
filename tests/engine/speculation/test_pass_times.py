"""The times of passes: what is measured, what is assumed between and behind it, and how it is corrected."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.pass_times import DEFAULT_SECONDS, KNOTS, MEASURED, PassTimes, measured

MEASURED_HERE = {1: 0.026, 16: 0.050, 64: 0.125, 128: 0.204, 256: 0.375, 512: 0.722}
"""Of a 0.5B model on two cores without AMX."""


def line(num_rows: int) -> float:
    return 0.018 + 0.002 * num_rows


def relative(times: PassTimes) -> list[float]:
    """The shape, whatever the level."""
    return [times(rows) / times(1) for rows in KNOTS]


class Clock:
    """Moves by what the passes take, `line` but for what is said; counts them."""

    def __init__(self, load: dict[int, list[float]] | None = None, speed: float = 1.0) -> None:
        self.now = 0.0
        self.ran: list[int] = []
        self._load = load or {}
        self._speed = speed

    def __call__(self) -> float:
        return self.now

    def run(self, num_rows: int) -> None:
        self.ran.append(num_rows)
        late = self._load.get(num_rows, [])
        self.now += self._speed * line(num_rows) + (late.pop(0) if late else 0.0)


def test_what_was_measured_is_given_and_lines_between_and_behind_it() -> None:
    times = PassTimes(MEASURED_HERE)
    for rows, seconds in MEASURED_HERE.items():
        assert times(rows) == pytest.approx(seconds)
    assert times(96) == pytest.approx((0.125 + 0.204) / 2)
    assert times(768) == pytest.approx(0.722 + (0.722 - 0.375))
    assert times(5000) == pytest.approx(0.722 + (0.722 - 0.375) / 256 * (5000 - 512))
    assert times(0) == 0.0


@given(st.dictionaries(st.integers(2, 1024), st.floats(1e-6, 1e3), max_size=6), st.floats(1e-6, 1e3))
def test_times_grow_whatever_was_measured(seconds: dict[int, float], single: float) -> None:
    times = PassTimes(seconds | {1: single})
    row_times = [times(rows) for rows in range(1, 3000)]
    assert row_times[0] > 0.0
    assert all(fewer <= more * (1 + 1e-12) for fewer, more in pairwise(row_times))
    assert row_times[2500] < row_times[2990], "noise never makes all further rows free"


@given(st.integers(0, 3000))
def test_prices_are_the_differences(num_rows: int) -> None:
    times = PassTimes(MEASURED_HERE)
    for count, price in zip(range(300), times.prices(num_rows), strict=False):
        assert price == pytest.approx(times(num_rows + count + 1) - times(num_rows + count), abs=1e-12)
        assert num_rows + count == 0 or price >= times.least_slope - 1e-12


def test_passes_of_a_few_sizes_are_measured_and_the_least_of_each_counts() -> None:
    clock = Clock(load={1: [0.5, 0.1], 16: [0.0, 0.03]})
    times = measured(clock.run, clock, budget_s=3.0)
    assert set(clock.ran) == set(MEASURED)
    assert clock.now <= 3.0 + line(1)
    for rows in (1, 10, 16, 100, 256, 1000):
        assert times(rows) == pytest.approx(line(rows))


def test_on_a_slow_machine_few_sizes_are_measured() -> None:
    clock = Clock(speed=40.0)
    times = measured(clock.run, clock)
    assert clock.ran == [1]
    assert relative(times) == pytest.approx(relative(PassTimes()))
    assert times(1) == pytest.approx(40 * line(1))
    clock = Clock(speed=3.0)
    times = measured(clock.run, clock)
    assert set(clock.ran) == {1, 16, 64}
    assert clock.now <= 1.5
    assert times(64) == pytest.approx(3 * line(64))


def test_no_more_rows_are_run_than_there_is_room_for_and_a_clock_that_stands_still_tells_nothing() -> None:
    clock = Clock()
    measured(clock.run, clock, most=20)
    assert set(clock.ran) == {1, 16}
    ran: list[int] = []
    assert measured(ran.append, lambda: 7.0).seconds == PassTimes().seconds
    assert len(ran) == 2


def test_passes_that_run_correct_a_loaded_start() -> None:
    """Single passes seemed as dear as those over 64 rows; in some hundred passes of an edit that is forgotten."""
    clock = Clock(load={1: [0.13] * 99})
    times = measured(clock.run, clock)
    true = [line(rows) / line(1) for rows in KNOTS]
    assert relative(times)[4] < 0.5 * true[4]
    for _ in range(40):
        for rows in (1, 1, 60, 200, 1):
            times.observe(rows, line(rows))
    assert relative(times)[3:6] == pytest.approx(true[3:6], rel=0.15)
    assert relative(times)[:3] == pytest.approx(true[:3], rel=0.5), "they were not run and have come along"


def test_load_that_slows_all_passes_changes_the_level_and_hardly_the_shape() -> None:
    times = PassTimes({rows: line(rows) for rows in KNOTS})
    before = relative(times)
    for number in range(60):
        rows = (1, 64, 256)[number % 3]
        times.observe(rows, 2 * line(rows))
    assert times(64) == pytest.approx(2 * line(64), rel=0.1)
    assert relative(times) == pytest.approx(before, rel=0.15)


def test_one_pass_that_was_held_up_changes_little() -> None:
    times = PassTimes({rows: line(rows) for rows in KNOTS})
    before = relative(times)
    times.observe(64, 1000.0)
    assert relative(times) == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (5, 0.0), (5, -1.0)])
def test_a_pass_of_nothing_or_in_no_time_teaches_nothing(rows: int, seconds: float) -> None:
    times = PassTimes()
    times.observe(rows, seconds)
    assert times.seconds == PassTimes(DEFAULT_SECONDS).seconds
