"""Draft lengths equal those of brute force, and hazards follow what became of the drafts before."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.acceptance import LEAST, MOST, AcceptanceModel
from engine.speculation.draft_state import DraftCandidate, _iter_gains, choose_lengths, compute_token_seconds
from engine.speculation.step_times import KNOTS, StepTimes
from engine.types import Draft, DraftRun

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


def test_the_example_of_a_length() -> None:
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


# What became of drafts corrects the hazard that their drafter states, source by source.


def draft(num_tokens: int, hazard: float = 0.01, source: str = "merge") -> Draft:
    return Draft.from_tokens(list(range(num_tokens)), source, hazard)


def first_hazard(hazards: AcceptanceModel, guess: Draft | None = None) -> float:
    (_, hazard), *_ = hazards.estimate_runs(guess or draft(50))
    return hazard


def later_hazard(hazards: AcceptanceModel, guess: Draft | None = None) -> float:
    *_, (_, hazard) = hazards.estimate_runs(guess or draft(50))
    return hazard


def test_before_anything_is_known_the_drafter_is_believed() -> None:
    assert list(AcceptanceModel().estimate_runs(draft(50, 0.03))) == [(50, 0.03)]
    assert list(AcceptanceModel().estimate_runs(draft(0))) == []


def test_the_example_of_hazards() -> None:
    hazards, seen = AcceptanceModel(), []
    for _ in range(3):
        seen.append(first_hazard(hazards))
        hazards.observe(draft(50), 0, missed=True)
    assert seen == pytest.approx([0.01, 0.35, 0.47], abs=0.01)
    hazards = AcceptanceModel()
    hazards.observe(draft(100), 100, missed=False)
    assert first_hazard(hazards) == pytest.approx(0.002, rel=0.1)


def test_behind_a_miss_the_first_token_is_uncertain_and_those_behind_it_are_not() -> None:
    hazards = AcceptanceModel()
    hazards.observe(draft(50), 20, missed=True)
    (num_first, first), (num_later, later) = hazards.estimate_runs(draft(50))
    assert (num_first, num_later) == (1, 49)
    assert first >= 0.15 > 0.1 > later > 0.01


def test_one_token_that_was_foretold_and_the_draft_is_believed_again() -> None:
    hazards = AcceptanceModel()
    for _ in range(40):
        hazards.observe(draft(50), 0, missed=True)
    assert first_hazard(hazards) > 0.9
    hazards.observe(draft(50), 1, missed=False)
    assert [hazard for _, hazard in hazards.estimate_runs(draft(50))] == pytest.approx([0.01])


def test_hazards_come_to_what_is_seen() -> None:
    """Every 20 tokens a miss where one in 1,000 was expected; behind it every second first token is wrong."""
    hazards = AcceptanceModel()
    for _ in range(60):
        hazards.observe(draft(50, 0.001), 20, missed=True)
        hazards.observe(draft(50, 0.001), 0, missed=True)
    assert later_hazard(hazards, draft(50, 0.001)) == pytest.approx(1 / 20, rel=0.4)
    assert first_hazard(hazards, draft(50, 0.001)) == pytest.approx(0.5, rel=0.1)


def test_what_the_drafter_knows_of_single_tokens_stays() -> None:
    hazards = AcceptanceModel()
    hazards.observe(draft(500, 0.002), 500, missed=False)
    guess = Draft(list(range(60)), (DraftRun("merge", 40, 0.002), DraftRun("merge", 20, 0.3)))
    (_, sure), (_, unsure) = hazards.estimate_runs(guess)
    assert sure < 0.002
    assert unsure / sure == pytest.approx(0.3 / 0.002)


def test_a_source_is_judged_by_its_own_tokens() -> None:
    hazards = AcceptanceModel()
    mixed = Draft(list(range(30)), (DraftRun("merge", 20, 0.01), DraftRun("update", 10, 0.01)))
    for _ in range(10):
        hazards.observe(mixed, 21, missed=True)  # the second token of "update"
        hazards.observe(draft(5, source="update"), 1, missed=False)
    (_, merge), (_, update) = hazards.estimate_runs(mixed)
    assert merge < 0.01 < 0.2 < update


def test_a_miss_at_the_border_counts_for_the_run_that_it_is_in() -> None:
    hazards = AcceptanceModel()
    mixed = Draft(list(range(30)), (DraftRun("merge", 20, 0.01), DraftRun("update", 10, 0.01)))
    hazards.observe(mixed, 20, missed=True)
    hazards.observe(mixed, 1, missed=False)
    (_, merge), (_, update) = hazards.estimate_runs(mixed)
    assert merge < 0.01 < update


def test_what_lies_far_back_is_forgotten() -> None:
    hazards = AcceptanceModel()
    for _ in range(40):
        hazards.observe(draft(50), 3, missed=True)
    wary = later_hazard(hazards)
    hazards.observe(draft(4000), 4000, missed=False)
    assert later_hazard(hazards) < wary / 50


def test_a_token_without_a_draft_says_nothing_of_where_the_next_one_stands() -> None:
    hazards = AcceptanceModel()
    hazards.observe(draft(50), 20, missed=False)
    hazards.observe_silence()
    assert first_hazard(hazards) >= 0.15


def test_a_guess_that_the_drafter_does_not_believe_in_is_worth_less_than_a_match() -> None:
    """Behind a miss as well: how likely a place is depends on how it was found."""
    hazards = AcceptanceModel()
    for num_right in (20, 30, 0, 40):
        hazards.observe(draft(50), num_right, missed=True)
    assert first_hazard(hazards, draft(50, 0.9)) > 3 * first_hazard(hazards, draft(50, 0.15))


seen = st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.floats(0.0, 1.0), st.sampled_from("ab")), max_size=40)


@given(seen, st.floats(0.0, 1.0))
def test_hazards_are_such_whatever_is_claimed_and_seen(
    events: list[tuple[int, bool, float, str]], claimed: float
) -> None:
    hazards = AcceptanceModel()
    for num_right, missed, hazard, source in events:
        hazards.observe(draft(61, hazard, source), num_right, missed=missed)
    guess = Draft(list(range(7)), (DraftRun("a", 3, claimed), DraftRun("b", 4, claimed)))
    runs = list(hazards.estimate_runs(guess))
    assert sum(num_tokens for num_tokens, _ in runs) == 7
    assert all(LEAST <= hazard <= MOST for _, hazard in runs)


def by_heap(
    guesses: list[DraftCandidate], num_rows: int, num_sequences: int, num_left: int, times: StepTimes
) -> list[int]:
    """One token after the other: of all drafts, the one whose next token gains most."""
    room = [
        min(num_left, max((n for n in range(1, guess.most + 1) if affords(guess, n, num_rows, times)), default=0))
        for guess in guesses
    ]
    share = num_left // max(1, len(guesses))
    gains = [
        list(_iter_gains(guess, num_sequences, min(share, most), times, {}))[:most]
        for guess, most in zip(guesses, room, strict=True)
    ]
    heap = [(-own[0], place, 0) for place, own in enumerate(gains) if own]
    heapify(heap)
    total, best, taken, num_best = 0.0, 0.0, list[int](), 0
    while heap and len(taken) < num_left:
        worth, place, at = heappop(heap)
        total -= worth + (times(num_rows + len(taken) + 1) - times(num_rows + len(taken)))
        taken.append(place)
        if total > best:
            best, num_best = total, len(taken)
        if at + 1 < len(gains[place]):
            heappush(heap, (-gains[place][at + 1], place, at + 1))
    return [taken[:num_best].count(place) for place in range(len(guesses))]


def affords(guess: DraftCandidate, num_tokens: int, num_rows: int, times: StepTimes) -> bool:
    return times(num_rows + num_tokens) <= times(num_rows) + guess.most_s


drafts = st.builds(
    DraftCandidate,
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from([1e-5, 0.001, 0.05, 0.3, 0.9])), min_size=1, max_size=4),
    st.integers(0, 40),
    st.sampled_from([0.0, 0.003, 0.05, 9.0]),
)


@given(st.lists(drafts, max_size=6), st.integers(1, 40), st.integers(0, 60), st.sampled_from(sorted(TIMES)))
def test_sorted_gains_are_taken_as_from_a_heap(
    guesses: list[DraftCandidate], num_rows: int, num_left: int, machine: str
) -> None:
    times = TIMES[machine]
    arguments = guesses, num_rows, max(1, len(guesses)), num_left, times
    assert choose_lengths(*arguments) == by_heap(*arguments)
