"""The chosen lengths are those of brute force, alone and beside others, and none where no draft pays."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.draft_length import DraftCandidate, choose_lengths, compute_token_seconds
from engine.speculation.step_times import KNOTS, StepTimes

BUDGET = 1024


def straight(fixed_rows: float) -> StepTimes:
    """A pass costs as much as `fixed_rows` rows, and each row 1 ms more."""
    return StepTimes({rows: 0.001 * (fixed_rows + rows) for rows in KNOTS})


TIMES = {
    "two cores": StepTimes({1: 0.026, 2: 0.034, 16: 0.050, 64: 0.125, 128: 0.204, 256: 0.375, 512: 0.722}),
    "straight, 18": straight(18),
    "straight, 64": straight(64),
    "straight, 400": straight(400),
    "a card": StepTimes({1: 0.006, 64: 0.0061, 256: 0.0064, 512: 0.0081, 1024: 0.014}),
}
HAZARDS = [0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98]


def chosen_alone(hazard: float, times: StepTimes, num_rows: int = 1) -> int:
    (length,) = choose_lengths([DraftCandidate([(BUDGET, hazard)], BUDGET)], num_rows, 1, BUDGET, times)
    return length


def tokens(hazard: float, length: int) -> float:
    """Expected tokens that a pass over a draft gives, the free one among them."""
    return (1.0 - (1.0 - hazard) ** (length + 1)) / hazard


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("hazard", HAZARDS)
def test_no_other_length_gives_more_tokens_a_second(times: StepTimes, hazard: float) -> None:
    rates = [tokens(hazard, length) / times(1 + length) for length in range(BUDGET + 1)]
    length = chosen_alone(hazard, times)
    assert rates[length] >= 0.995 * max(rates)
    if length == 0 or max(rates) == rates[0]:
        assert length == 0 == rates.index(max(rates))


def test_on_a_straight_line_the_length_is_the_very_one() -> None:
    for fixed_rows, hazard in product([5, 18, 400], [0.003, 0.03, 0.3, 0.5, 0.9]):
        times = straight(fixed_rows)
        rates = [tokens(hazard, length) / times(1 + length) for length in range(BUDGET + 1)]
        assert abs(chosen_alone(hazard, times) - rates.index(max(rates))) <= 1


def test_the_example() -> None:
    assert chosen_alone(0.01, straight(18)) == 54
    assert compute_token_seconds(0.01, 1, BUDGET, straight(18)) == pytest.approx(0.00172, abs=5e-6)


@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("hazard", HAZARDS)
def test_the_seconds_of_a_token_are_those_of_the_best_constant_length(times: StepTimes, hazard: float) -> None:
    best = min(times(1 + length) / tokens(hazard, length) for length in range(BUDGET + 1))
    assert 1.0 <= compute_token_seconds(hazard, 1, BUDGET, times) / best + 1e-9 <= 1.02
    best = min(times(1 + length) / tokens(hazard, length) for length in range(8))
    assert 1.0 <= compute_token_seconds(hazard, 1, 7, times) / best + 1e-9 <= 1.02, "with seven drafted at most"


def test_nothing_is_drafted_that_is_unlikely_enough() -> None:
    assert chosen_alone(0.98, TIMES["two cores"]) == 0
    assert chosen_alone(0.95, straight(18)) == 0
    assert chosen_alone(0.95, straight(400)) > 0, "where a row costs next to nothing it is tried"
    assert choose_lengths([], 5, 5, 100, straight(18)) == []
    assert choose_lengths([DraftCandidate([], 0)], 1, 1, 100, straight(18)) == [0]


def test_what_is_likely_is_drafted_to_its_end() -> None:
    for times in TIMES.values():
        assert choose_lengths([DraftCandidate([(300, 1e-5)], 300)], 1, 1, BUDGET, times) == [300]
        assert choose_lengths([DraftCandidate([(300, 1e-5)], 300)], 1, 1, 100, times) == [100]
        assert choose_lengths([DraftCandidate([(300, 1e-5)], 50)], 1, 1, BUDGET, times) == [50]


def test_what_stands_behind_an_unlikely_token_is_left_to_the_next_pass() -> None:
    """Were all of it tried, four of five passes would run 500 rows for nothing."""
    behind = [(100, 1e-4), (1, 0.8), (500, 1e-4)]
    (length,) = choose_lengths([DraftCandidate(behind, 601)], 1, 1, BUDGET, TIMES["two cores"])
    assert 100 <= length <= 101


def test_the_end_of_the_output_is_tried_for_where_a_pass_costs_more_than_its_rows() -> None:
    """Eight tokens that are right half of the time: to leave them is to pay another pass."""
    draft = [(100, 1e-4), (1, 0.5), (8, 1e-4)]
    assert choose_lengths([DraftCandidate(draft, 109)], 1, 1, BUDGET, straight(64)) == [109]


def test_rows_beside_the_last_chunk_of_a_prompt_go_by_the_same_rule() -> None:
    times = TIMES["two cores"]
    beside = chosen_alone(0.01, times, num_rows=300)
    assert abs(beside - chosen_alone(0.01, times)) < 20, "the fixed cost is paid anyway, the rows are not"


@pytest.mark.parametrize(("num_sequences", "hazard"), list(product([2, 4, 16], [0.001, 0.01, 0.1, 0.5])))
def test_equal_sequences_draft_what_gives_all_of_them_most_tokens_a_second(num_sequences: int, hazard: float) -> None:
    times = TIMES["two cores"]
    guesses = [DraftCandidate([(BUDGET, hazard)], BUDGET)] * num_sequences
    lengths = choose_lengths(guesses, num_sequences, num_sequences, 512 - num_sequences, times)
    most = (512 - num_sequences) // num_sequences
    rates = [tokens(hazard, length) / times(num_sequences * (1 + length)) for length in range(most + 1)]
    assert max(lengths) - min(lengths) <= 1
    assert rates[min(lengths)] >= 0.99 * max(rates)


def test_the_more_run_the_less_is_each_draft_worth() -> None:
    lengths = []
    for num_sequences in (1, 4, 16, 64):
        guesses = [DraftCandidate([(BUDGET, 0.3)], BUDGET)] * num_sequences
        lengths.append(choose_lengths(guesses, num_sequences, num_sequences, 448, straight(64))[0])
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1] >= 1


def test_two_sequences_share_a_step_by_what_their_tokens_are_worth() -> None:
    likely, unlikely = DraftCandidate([(BUDGET, 0.001)], BUDGET), DraftCandidate([(BUDGET, 0.2)], BUDGET)
    for guesses, first in (([likely, unlikely], 0), ([unlikely, likely], 1)):
        lengths = choose_lengths(guesses, 2, 2, 60, TIMES["two cores"])
        assert sum(lengths) == 60
        assert lengths[first] > 50 > 8 > lengths[1 - first] > 0


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.floats(0.001, 0.98)), min_size=1, max_size=3), min_size=1, max_size=2
    ),
    st.integers(1, 40),
    st.sampled_from(list(TIMES.values())),
    st.integers(0, 12),
)
def test_lengths_are_those_of_all_that_are_tried(
    runs: list[list[tuple[int, float]]], others: int, times: StepTimes, num_left: int
) -> None:
    """Of one draft, and of two whose tokens are worth ever less; they are taken token by token."""
    if len(runs) == 2:
        runs = [each[:1] for each in runs]
    guesses = [DraftCandidate(each, sum(num_tokens for num_tokens, _ in each)) for each in runs]
    num_rows, num_sequences = len(guesses) + others, len(guesses)

    def gain(lengths: tuple[int, ...]) -> float:
        worth = 0.0
        for length, each in zip(lengths, runs, strict=True):
            survival, place = 1.0, 0
            behind = sum(num_tokens for num_tokens, _ in each)
            for num_tokens, hazard in each:
                at_once = times(num_sequences * behind) / (num_sequences * behind)
                most = min(num_left // num_sequences, sum(count for count, _ in each))
                one = max(compute_token_seconds(hazard, num_sequences, most, times), at_once)
                for _ in range(num_tokens):
                    survival *= 1.0 - hazard
                    worth += survival * one * (place < length)
                    place += 1
                behind -= num_tokens
        return worth - times(num_rows + sum(lengths)) + times(num_rows)

    tried = product(*(range(guess.most + 1) for guess in guesses))
    best = max(gain(lengths) for lengths in tried if sum(lengths) <= num_left)
    chosen = choose_lengths(guesses, num_rows, num_sequences, num_left, times)
    assert sum(chosen) <= num_left
    assert gain(tuple(chosen)) >= best - 1e-9


def test_no_more_is_tried_than_may_be_lost() -> None:
    times = straight(18)
    assert choose_lengths([DraftCandidate([(300, 1e-4)], 300, most_s=0.0405)], 1, 1, BUDGET, times) == [40]
    assert choose_lengths([DraftCandidate([(300, 1e-4)], 300, most_s=0.0)], 1, 1, BUDGET, times) == [0]
