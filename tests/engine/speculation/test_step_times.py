"""Step times: how they are measured, rounded, interpolated, and kept in a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.step_times import (
    FORMAT,
    KNOTS,
    MEASURED,
    STEPS_AN_OCTAVE,
    StepTimes,
    StepTimesFile,
    measure_times,
    round_to_grid,
)

MEASURED_HERE = {1: 0.026, 16: 0.050, 64: 0.125, 128: 0.204, 256: 0.375, 512: 0.722}
"""Of a 0.5B model on two cores without AMX."""


def line(num_rows: int) -> float:
    return 0.018 + 0.002 * num_rows


def rounded_line(sizes: Iterable[int]) -> dict[int, float]:
    return round_to_grid({rows: line(rows) for rows in sizes})


def relative(times: StepTimes) -> list[float]:
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
    times = StepTimes(MEASURED_HERE)
    for rows, seconds in MEASURED_HERE.items():
        assert times(rows) == pytest.approx(seconds)
    assert times(96) == pytest.approx((0.125 + 0.204) / 2)
    assert times(768) == pytest.approx(0.722 + (0.722 - 0.375))
    assert times(5000) == pytest.approx(0.722 + (0.722 - 0.375) / 256 * (5000 - 512))
    assert times(0) == 0.0


@given(st.dictionaries(st.integers(2, 1024), st.floats(1e-6, 1e3), max_size=6), st.floats(1e-6, 1e3))
def test_times_grow_whatever_was_measured(seconds: dict[int, float], single: float) -> None:
    times = StepTimes(seconds | {1: single})
    row_times = [times(rows) for rows in range(1, 3000)]
    assert row_times[0] > 0.0
    assert all(fewer <= more * (1 + 1e-12) for fewer, more in pairwise(row_times))
    assert row_times[2500] < row_times[2990], "noise never makes all further rows free"


@given(st.dictionaries(st.sampled_from(KNOTS[1:]), st.floats(1e-6, 1e3), max_size=6), st.floats(1e-6, 1e3))
def test_times_that_are_kept_are_read_as_they_were(seconds: dict[int, float], single: float) -> None:
    kept = StepTimes(seconds | {1: single}).seconds
    assert StepTimes(kept).seconds == pytest.approx(kept, rel=1e-9)


@given(st.integers(0, 3000))
def test_prices_are_the_differences(num_rows: int) -> None:
    times = StepTimes(MEASURED_HERE)
    for count, price in enumerate(times.get_prices(num_rows, 300)):
        assert price == pytest.approx(times(num_rows + count + 1) - times(num_rows + count), abs=1e-12)
        assert num_rows + count == 0 or price >= times.least_slope - 1e-12


def test_passes_of_a_few_sizes_are_measured_and_the_least_of_each_counts() -> None:
    clock = Clock(load={1: [0.5, 0.1], 16: [0.0, 0.03]})
    times = measure_times(clock.run, clock, budget_s=4.0)
    assert set(clock.ran) == set(MEASURED)
    assert clock.now <= 4.0 + line(1)
    for rows, seconds in rounded_line(MEASURED).items():
        assert times(rows) == pytest.approx(seconds)


def test_a_single_pass_that_was_held_up_when_its_turn_came_is_run_again_beside_the_others() -> None:
    clock = Clock(load={1: [0.13, 0.13]})
    assert measure_times(clock.run, clock)(1) == pytest.approx(line(1))


def test_times_are_rounded_to_a_grid_so_that_two_starts_find_the_same() -> None:
    exact = {rows: line(rows) for rows in MEASURED}
    found = round_to_grid(exact)
    assert round_to_grid(found) == pytest.approx(found)
    assert found[1] == exact[1]
    for rows, seconds in found.items():
        steps = STEPS_AN_OCTAVE * math.log2(seconds / found[1])
        assert steps == pytest.approx(round(steps))
        assert abs(math.log2(seconds / exact[rows])) <= 0.5 / STEPS_AN_OCTAVE
    assert round_to_grid({1: 0.020, 64: 0.093})[64] == pytest.approx(0.0951, abs=5e-5), "the example"
    apart = round_to_grid({rows: seconds * (1.01 if rows % 64 else 0.99) for rows, seconds in found.items()})
    assert relative(StepTimes(apart)) == pytest.approx(relative(StepTimes(found)))


def test_all_who_hold_times_see_them_replaced() -> None:
    times, other = StepTimes(MEASURED_HERE), StepTimes({1: 0.006, 64: 0.0061, 256: 0.0064})
    times.replace(other)
    assert times.seconds == other.seconds
    assert [times(rows) for rows in (3, 700, 5000)] == [other(rows) for rows in (3, 700, 5000)]
    assert times.least_slope == other.least_slope


def test_on_a_slow_machine_few_sizes_are_measured() -> None:
    clock = Clock(speed=40.0)
    times = measure_times(clock.run, clock)
    assert clock.ran == [1, 16, 1]
    assert times(1) == pytest.approx(40 * line(1))
    assert times(16) == pytest.approx(40 * rounded_line((1, 16))[16])
    clock = Clock(speed=3.0)
    times = measure_times(clock.run, clock)
    assert set(clock.ran) == {1, 2, 4, 64}
    assert clock.now <= 1.5
    assert times(64) == pytest.approx(3 * rounded_line((1, 64))[64])


def test_two_sizes_next_to_one_another_tell_nothing_about_many_rows() -> None:
    """A second row may cost as much as the first, most of all beside other work; the sixteenth never does."""
    clock = Clock(speed=15.0, load={2: [0.3, 0.3]})
    times = measure_times(clock.run, clock)
    assert set(clock.ran) == {1, 2, 16}
    assert times(16) == pytest.approx(15 * rounded_line((1, 16))[16])


def test_rows_that_are_dear_are_not_taken_for_cheap_where_measuring_takes_long() -> None:
    """As with the 1.5B on two cores with AVX2: four rows take as long as one, 16 and 64 three and 12 times as long."""
    seconds, now, ran = {1: 0.14, 2: 0.148, 4: 0.147, 16: 0.4, 64: 1.6}, [0.0], list[int]()

    def run(num_rows: int) -> None:
        ran.append(num_rows)
        now[0] += seconds[num_rows] + (first_s if len(ran) == 1 else 0.0)

    for first_s in (0.0, 1.0):  # the first pass may compile
        now[0], ran[:] = 0.0, []
        times = measure_times(run, lambda: now[0], budget_s=1.0)
        assert times(16) / times(1) == pytest.approx(0.4 / 0.14, rel=0.05)
        assert 8 < times(64) / times(1) < 16
        assert first_s or times(4) / times(1) == pytest.approx(0.148 / 0.14, rel=0.05)


def test_no_more_rows_are_run_than_there_is_room_for_and_a_clock_that_stands_still_tells_nothing() -> None:
    clock = Clock()
    measure_times(clock.run, clock, most=20)
    assert set(clock.ran) == {1, 2, 4, 16}
    ran: list[int] = []
    assert measure_times(ran.append, lambda: 7.0).seconds == StepTimes().seconds
    assert len(ran) == 2


# The file outlives a start; a damaged or foreign file is not read and hinders nobody.


TIMES = StepTimes({1: 0.02, 64: 0.1})


def kept_in(folder: Path) -> StepTimesFile:
    return StepTimesFile(folder / "times", "model", "machine")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert kept_in(tmp_path).read() is None
    kept_in(tmp_path).write(TIMES)
    read = kept_in(tmp_path).read()
    assert read is not None
    assert read.seconds == TIMES.seconds
    assert [each.suffix for each in (tmp_path / "times").iterdir()] == [".json"], "nothing half written is left"


def test_another_model_or_machine_has_another_file(tmp_path: Path) -> None:
    file = kept_in(tmp_path)
    file.write(TIMES)
    for other in (replace(file, model="other"), replace(file, machine="other")):
        assert other.read() is None
        other.path.write_bytes(file.path.read_bytes())
        assert other.read() is None, "it says whose it is"


def spoilt(**changes: Any) -> bytes:
    seconds = {str(rows): each for rows, each in TIMES.seconds.items()}
    whole = {"format": FORMAT, "model": "model", "machine": "machine", "seconds": seconds}
    return json.dumps(whole | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b"null",
        spoilt()[:-9],
        spoilt(format=FORMAT - 1),
        spoilt(seconds={}),
        spoilt(seconds={"1": 0.1}),
        spoilt(seconds=[0.1]),
        *(
            spoilt(seconds={str(rows): each for rows, each in (TIMES.seconds | {64: value}).items()})
            for value in (0, -1.0, "0.1", None, float("nan"), float("inf"), [])
        ),
    ],
)
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    file = kept_in(tmp_path)
    file.path.parent.mkdir()
    file.path.write_bytes(content)
    assert file.read() is None
    file.write(TIMES)
    assert file.read() is not None


def test_a_whole_file_of_that_shape_is_read(tmp_path: Path) -> None:
    """What the damaged ones differ from."""
    file = kept_in(tmp_path)
    file.path.parent.mkdir()
    file.path.write_bytes(spoilt())
    assert file.read() is not None


def test_a_folder_that_cannot_be_written_hinders_nobody(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("a file")
    kept_in(tmp_path).write(TIMES)
    assert kept_in(tmp_path).read() is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    file = kept_in(tmp_path)
    file.folder.mkdir()
    os.mkfifo(file.path)
    assert file.read() is None
    file.path.unlink()
    file.path.symlink_to("/dev/zero")
    assert file.read() is None
    file.path.unlink()
    file.path.write_bytes(b"[" * 100_000)
    assert file.read() is None
