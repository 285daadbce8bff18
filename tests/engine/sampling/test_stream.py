"""The random stream: even along positions and across seeds, and every token gets its share of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.sampler import BLOCK, draw, uniform
from tests.engine.sampling import slow

positive = st.floats(2.0**-20, 1, width=32)


def deviation(numbers: list[float], num_bins: int) -> float:
    """Chi square of numbers in [0, 1) against equal shares."""
    counts = np.bincount((np.array(numbers) * num_bins).astype(int), minlength=num_bins)
    expected = len(numbers) / num_bins
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_stream_is_even_along_positions() -> None:
    assert deviation([uniform(3, position) for position in range(20_000)], 16) < 37.7  # 99.9 %, 15 degrees of freedom


def test_the_stream_is_even_across_seeds() -> None:
    assert deviation([uniform(seed, 0) for seed in range(20_000)], 16) < 37.7


def test_neighbouring_positions_are_independent() -> None:
    numbers = [uniform(5, position) for position in range(20_001)]
    pairs = [(int(a * 4) * 4 + int(b * 4)) / 16 for a, b in pairwise(numbers)]
    assert deviation(pairs, 16) < 37.7


def test_the_stream_is_what_it_was() -> None:
    """Seeds are promises: the same text after an update."""
    assert [uniform(7, position) for position in (0, 1, 1000)] == [
        0.000772745446342952,
        0.919768592376734,
        0.8140915476607169,
    ]


@given(
    st.lists(st.one_of(st.just(0.0), positive), min_size=1, max_size=30).filter(any),
    st.floats(0, 1),
    st.integers(0, 3 * BLOCK),
)
def test_a_draw_lays_the_weights_side_by_side(some: list[float], number: float, num_zeros: int) -> None:
    weights = np.array([*some, *[0.0] * num_zeros, *some[::-1]], dtype=np.float32)
    place = draw(weights, number)
    assert weights[place] > 0
    total = weights.sum(dtype=np.float64)
    before = weights[:place].sum(dtype=np.float64) / total
    assert before - 1e-12 <= number <= before + weights[place] / total + 1e-12


def test_a_draw_from_a_vocabulary_is_that_of_adding_the_weights_one_by_one() -> None:
    weights = np.exp(np.random.default_rng(0).normal(size=10_007).astype(np.float32) * 4 - 16)
    weights[np.random.default_rng(1).random(len(weights)) < 0.3] = 0
    for position in range(300):
        assert draw(weights, uniform(0, position)) == slow.draw(weights, uniform(0, position))


def test_weights_that_vanish_beside_a_large_one_in_float32_have_their_share() -> None:
    small = 2.0**-34  # 512 of them are below half a unit of 1 in its last place
    weights = np.full(20 * BLOCK, small, dtype=np.float32)
    weights[0] = 1.0
    total = float(weights.sum(dtype=np.float64))
    for place in (1, 700, len(weights) - 1):
        assert draw(weights, (1 + (place - 0.5) * small) / total) == place


@pytest.mark.parametrize("size", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_the_ends_of_the_stream_draw_the_first_and_the_last_token_that_have_a_weight(size: int) -> None:
    weights = np.zeros(size + 2 * BLOCK, dtype=np.float32)
    weights[BLOCK : BLOCK + size] = 0.3
    assert draw(weights, 0.0) == BLOCK
    assert draw(weights, 1.0) == BLOCK + size - 1
