"""What a request's drafts came to corrects what their drafter expects, source by source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.acceptance import LEAST, MOST, AcceptanceModel
from engine.types import Draft, DraftRun


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


def test_the_example() -> None:
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
