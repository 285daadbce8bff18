"""Passes that run correct times that are far from right, and hardly touch others, whatever load and contexts do."""

from __future__ import annotations

import random

import pytest

from engine.speculation.step_times import KNOTS, Corrections, PassTimes


def line(num_rows: int) -> float:
    return 0.018 + 0.002 * num_rows


RIGHT = PassTimes({rows: line(rows) for rows in KNOTS})
ROWS_ARE_FREE = PassTimes({1: line(64), 64: line(64), 1024: line(1024)})


def relative(times: PassTimes) -> list[float]:
    """The shape, whatever the level."""
    return [times(rows) / times(1) for rows in KNOTS]


def test_times_that_a_loaded_start_gave_are_found_out_and_corrected() -> None:
    """Single passes seemed as dear as those over 64 rows; in some hundred passes of an edit that is put right."""
    corrections = Corrections(ROWS_ARE_FREE)
    for number in range(60):
        for rows in (1, 1, 60, 200, 1):
            corrections.observe(rows, line(rows))
        assert number < 20 or corrections.is_large
    corrected = corrections.corrected
    assert corrected(1) == ROWS_ARE_FREE(1), "the level is not what lengths depend on"
    assert relative(corrected)[5:8] == pytest.approx(relative(RIGHT)[5:8], rel=0.15)
    assert relative(corrected)[:5] == pytest.approx(relative(RIGHT)[:5], rel=0.5), "not run, and have come along"
    assert relative(ROWS_ARE_FREE)[5] == 1.0, "until it is told to, nobody sees it"


def test_drafts_that_are_always_refused_teach_as_much() -> None:
    """Sixteen rows that seem to be free are tried all the time, and are not."""
    corrections = Corrections(ROWS_ARE_FREE)
    num_passes = 0
    while not corrections.is_large:
        corrections.observe(16, line(16))
        corrections.observe(1, line(1))
        num_passes += 1
    assert num_passes < 40


def test_a_slower_machine_is_no_other_shape() -> None:
    corrections = Corrections(RIGHT)
    for number in range(600):
        rows = (1, 64, 256)[number % 3]
        corrections.observe(rows, 2 * line(rows))
        assert not corrections.is_large
    assert relative(corrections.corrected) == pytest.approx(relative(RIGHT), rel=0.15)


@pytest.mark.parametrize("rows", [(1,), (1, 1, 1, 1, 300)])
def test_other_work_that_comes_and_goes_changes_nothing(rows: tuple[int, ...]) -> None:
    rng, corrections = random.Random(1), Corrections(RIGHT)
    for _ in range(3000):
        size = rng.choice(rows)
        corrections.observe(size, line(size) * rng.choice([1.0, 1.1, 1.3, 3.0]))
        assert not corrections.is_large


@pytest.mark.parametrize("dearer", [1.5, 2.4, 4.0])
def test_a_long_context_that_makes_single_rows_dearer_changes_nothing(dearer: float) -> None:
    """The level takes it up, and sinks again."""
    corrections = Corrections(RIGHT)
    for _ in range(3):
        for factor in (dearer, 1.0):
            for _ in range(300):
                corrections.observe(1, factor * line(1))
                assert not corrections.is_large


def test_one_pass_that_was_held_up_changes_little() -> None:
    corrections = Corrections(RIGHT)
    corrections.observe(64, 1000.0)
    assert not corrections.is_large
    assert relative(corrections.corrected) == pytest.approx(relative(RIGHT), rel=0.1)


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (5, 0.0), (5, -1.0)])
def test_a_pass_of_nothing_or_in_no_time_teaches_nothing(rows: int, seconds: float) -> None:
    taught, untaught = Corrections(RIGHT), Corrections(RIGHT)
    taught.observe(rows, seconds)
    assert taught.corrected.seconds == untaught.corrected.seconds
