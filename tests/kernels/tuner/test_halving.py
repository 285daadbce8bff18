"""Successive halving: what it finds is what timing everything for long would find, for a fraction of the samples."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.op import Variant
from kernels.tuner.search import FINAL_REPEATS, FIRST_REPEATS, NUM_FINALISTS, Timing, halve
from tests.kernels.tuner.planted import BEST, DEFAULT, PlantedTimer, planted_cost, variants


def prepared(timer: PlantedTimer) -> list[Variant]:
    found = variants()
    for variant in found:
        timer.prepare(variant)
    return found


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.05]), st.sampled_from([0.0, 1e-3]))
def test_the_best_of_a_planted_cost_is_found_under_noise_and_drift(seed: int, noise: float, drift: float) -> None:
    """The drift doubles all times within a thousand samples."""
    timer = PlantedTimer(planted_cost, noise=noise, drift=drift, seed=seed)
    found = halve(prepared(timer), timer.sample, Random(seed))
    assert found[0].variant == BEST
    assert [each.score for each in found] == sorted(each.score for each in found)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(0, 2**32))
def test_without_noise_it_is_the_fastest_of_all(costs: list[int], seed: int) -> None:
    candidates = [{"number": number} for number in range(len(costs))]
    found = halve(candidates, lambda variant: (costs[variant["number"]],), Random(seed))
    assert found[0].seconds == (min(costs),)


def test_most_samples_go_to_the_finalists() -> None:
    timer = PlantedTimer(planted_cost, noise=0.05)
    candidates = prepared(timer)
    found = halve(candidates, timer.sample, Random(1))
    assert len(found) == NUM_FINALISTS
    assert all(each.num_samples >= FINAL_REPEATS for each in found)
    assert sorted(timer.num_samples.values())[0] == FIRST_REPEATS
    assert timer.num_samples.total() < len(candidates) * FINAL_REPEATS / 3


def test_a_round_times_each_once_in_an_order_of_its_own() -> None:
    timed: list[int] = []

    def sample(variant: Variant) -> tuple[float, ...]:
        timed.append(variant["number"])
        return (1.0 + variant["number"],)

    halve([{"number": number} for number in range(5)], sample, Random(1))
    rounds = [tuple(timed[start : start + 5]) for start in range(0, len(timed), 5)]
    assert len(rounds) == FINAL_REPEATS
    assert all(sorted(each) == [0, 1, 2, 3, 4] for each in rounds)
    assert len(set(rounds)) > FINAL_REPEATS / 2, "of 120 orders"


def test_the_baseline_comes_to_the_end_however_slow_it_is() -> None:
    def cost(variant: Variant) -> tuple[float, ...]:
        return (1.0,) if variant == DEFAULT else planted_cost(variant)[:1]

    timer = PlantedTimer(cost)
    found = halve(prepared(timer), timer.sample, Random(1), baseline=DEFAULT)
    assert found[0].variant == BEST
    assert found[-1] == Timing(DEFAULT, (1.0,), found[0].num_samples)


def test_what_is_dropped_is_said_once_and_not_timed_again() -> None:
    timer = PlantedTimer(planted_cost)
    candidates = prepared(timer)
    found = halve(candidates, timer.sample, Random(1), on_drop=timer.release)
    assert len(timer.prepared) == len(found)


@pytest.mark.parametrize("num_rounds", [1, 2, 5, 12])
def test_when_the_time_is_over_all_that_are_left_were_timed_alike(num_rounds: int) -> None:
    rounds = iter(range(1000))
    timer = PlantedTimer(planted_cost, noise=0.05)
    found = halve(prepared(timer), timer.sample, Random(1), is_expired=lambda: next(rounds) >= num_rounds)
    assert len({each.num_samples for each in found}) == 1
    assert found[0].num_samples <= num_rounds + 1
    assert found[0].variant == BEST


@given(st.lists(st.tuples(st.floats(1e-6, 1e-3), st.floats(1e-6, 1e-3)), min_size=9, max_size=9))
def test_times_are_medians_by_shape(drawn: list[tuple[float, float]]) -> None:
    samples = iter(drawn * 100)
    rounds = iter(range(1000))
    (found,) = halve([{"number": 0}], lambda variant: next(samples), Random(1), is_expired=lambda: next(rounds) >= 8)
    assert found.seconds == (median(first for first, _ in drawn), median(second for _, second in drawn))


def test_a_tenth_off_a_short_shape_counts_as_a_tenth_off_a_long_one() -> None:
    assert Timing({}, (0.9e-6, 1e-3), 1).score == pytest.approx(Timing({}, (1e-6, 0.9e-3), 1).score)


def test_nothing_to_time_is_no_winner() -> None:
    assert halve([], lambda variant: (1.0,), Random(1)) == []
