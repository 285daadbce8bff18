"""A branch is run as far as brute force says that it pays: seldom on a CPU, often where rows are cheap."""

from __future__ import annotations

from itertools import accumulate, chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.draft_length import BranchGuess, branch_length, seconds_each
from engine.speculation.step_times import PassTimes

TWO_CORES = PassTimes({1: 0.026, 16: 0.050, 64: 0.125, 128: 0.204, 256: 0.375, 512: 0.722})
CARD = PassTimes({1: 0.006, 64: 0.0061, 256: 0.0064, 512: 0.0081, 1024: 0.014})


def straight(fixed_rows: float) -> PassTimes:
    """A pass costs as much as `fixed_rows` rows, and each row 1 ms more."""
    return PassTimes({rows: 0.001 * (fixed_rows + rows) for rows in (1, 1024)})


@given(
    chance=st.floats(0.0, 1.0),
    num_tokens=st.integers(1, 60),
    hazard=st.sampled_from([1e-4, 0.003, 0.05, 0.4]),
    num_rows=st.integers(1, 600),
    num_sequences=st.integers(1, 9),
    num_left=st.integers(1, 100),
    times=st.sampled_from([TWO_CORES, CARD, straight(18)]),
)
def test_no_other_length_gains_more(
    chance: float, num_tokens: int, hazard: float, num_rows: int, num_sequences: int, num_left: int, times: PassTimes
) -> None:
    """Behind the first token, all are worth the same, but for the chance that it comes to them."""
    guess = BranchGuess(chance, [(num_tokens - 1, hazard)] * (num_tokens > 1))
    length = branch_length(guess, num_rows, num_sequences, num_left, times)

    def each(num_behind: int) -> float:
        shared = num_sequences * num_behind
        at_once = times(shared) / shared
        return max(seconds_each(hazard, num_sequences, num_left, times), at_once) if num_tokens > 1 else at_once

    worths = [chance * each(num_tokens)]
    worths += [chance * (1 - hazard) ** at * each(num_tokens - 1) for at in range(1, num_tokens)]
    gained = accumulate(chain([0.0], worths))
    gains = [worth - times(num_rows + num) + times(num_rows) for num, worth in enumerate(gained) if num <= num_left]
    assert 0 <= length <= min(num_tokens, num_left)
    assert gains[length] >= max(gains) - 1e-9


def test_the_example() -> None:
    for chance, length in ((0.26, 0), (0.3, 10)):
        assert branch_length(BranchGuess(chance, [(9, 1e-9)]), 40, 1, 100, straight(25)) == length


@pytest.mark.parametrize(
    ("times", "num_tokens", "least"), [(TWO_CORES, 16, 0.4), (TWO_CORES, 256, 0.8), (CARD, 16, 0.004)]
)
def test_how_likely_it_has_to_be(times: PassTimes, num_tokens: int, least: float) -> None:
    def length(chance: float, num_sequences: int = 1) -> int:
        return branch_length(BranchGuess(chance, [(num_tokens - 1, 0.001)]), 64, num_sequences, 900, times)

    assert length(0.9 * least) == 0 < length(1.1 * least)
    assert length(0.9 * least, 16) <= length(1.1 * least, 16) <= length(1.1 * least), "beside others it has to share"


def test_it_costs_no_more_than_may_be_lost() -> None:
    for most_s in (0.0, 0.004, 0.02):
        guess = BranchGuess(1.0, [(30, 0.001)], most_s)
        length = branch_length(guess, 64, 1, 900, TWO_CORES)
        assert TWO_CORES(64 + length) - TWO_CORES(64) <= most_s < TWO_CORES(64 + length + 1) - TWO_CORES(64)
