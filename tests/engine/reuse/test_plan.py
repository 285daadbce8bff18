"""Reuse plans: every token is either reused or computed, and tokens that a change invalidates are computed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.reuse import Match, PromptSegment, Reuse, ReuseMode, plan_reuse
from engine.reuse.plan import FEWEST_TOKENS, MAX_GENERATION, Lineage


def match(start: int, end: int, source: int | None = None, record: int = 0, generation: int = 0) -> Match:
    at = start if source is None else source
    return Match(start, np.arange(at, at + end - start, dtype=np.int64), at, record, generation)


def ranges(positions: np.ndarray) -> list[tuple[int, int]]:
    """Neighbours as half-open ranges."""
    found: list[tuple[int, int]] = []
    for position in positions.tolist():
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, int, list[Match], Reuse]:
    num_tokens = draw(st.integers(2, 300))
    num_cached = draw(st.integers(0, num_tokens - 1))
    borders = sorted(draw(st.sets(st.integers(num_cached, num_tokens - 1), max_size=12)))
    found = [
        match(first, end, draw(st.integers(0, 400)), draw(st.integers(0, 2)), draw(st.integers(0, MAX_GENERATION)))
        for first, end in pairwise(borders)
        if draw(st.booleans())
    ]
    mode: ReuseMode = draw(st.sampled_from(["fast", "turbo"]))
    ends = sorted(draw(st.sets(st.integers(1, num_tokens), max_size=8)))
    asked = [tuple(sorted((draw(st.integers(0, num_tokens)), draw(st.integers(0, num_tokens)))))]
    budget = draw(st.sampled_from([None, 0.0, 0.1, 1.0]))
    return num_tokens, num_cached, found, Reuse(mode, ends, budget, asked)  # type: ignore[arg-type]


@given(prompts())
def test_every_token_is_cached_taken_over_or_run(prompt: tuple[int, int, list[Match], Reuse]) -> None:
    num_tokens, num_cached, found, reuse = prompt
    plan = plan_reuse(num_tokens, num_cached, found, reuse)
    placed = [position for each in plan.placed for position in range(each.start, each.end)]
    assert sorted([*range(num_cached), *placed, *plan.pending.tolist()]) == list(range(num_tokens))
    assert plan.pending.tolist() == sorted(plan.pending.tolist())
    assert plan.pending[-1] == num_tokens - 1
    assert sum(plan.by_reason.values()) == len(plan.pending)
    assert plan.num_exact == (placed[0] if placed else num_tokens)
    stored = {each.start + at: (slot, each) for each in found for at, slot in enumerate(each.slots.tolist())}
    for part in plan.placed:
        for at, slot in enumerate(part.slots.tolist()):
            known, whole = stored[part.start + at]
            assert slot == known
            assert part.source + at == whole.source + part.start + at - whole.start
            assert part.generation == whole.generation < MAX_GENERATION
    if any(each.generation == MAX_GENERATION and len(each.slots) >= FEWEST_TOKENS for each in found):
        assert not placed, "the prompt is run exactly"
    if reuse.budget == 1.0:
        assert not any(position > plan.pending[0] for position in placed)
    for first, end in reuse.recompute:  # what is exact already is not run again
        assert not any(first <= position < end for position in placed)


@given(prompts())
def test_turbo_runs_no_more_than_fast(prompt: tuple[int, int, list[Match], Reuse]) -> None:
    num_tokens, num_cached, found, reuse = prompt
    turbo, fast = (
        plan_reuse(num_tokens, num_cached, found, Reuse(mode, reuse.segment_ends)) for mode in ("turbo", "fast")
    )
    assert set(turbo.pending.tolist()) <= set(fast.pending.tolist())


def test_behind_a_change_the_rest_of_its_segment_is_run() -> None:
    found = [match(0, 40), match(43, 100, 41)]
    plan = plan_reuse(101, 0, found, Reuse("fast", (30, 60, 90)))
    assert ranges(plan.pending) == [(40, 60), (100, 101)]
    assert plan.by_reason == {"changed": 4, "segment": 17}
    assert ranges(plan_reuse(101, 0, found, Reuse("turbo", (30, 60, 90))).pending) == [(40, 43), (100, 101)]


def test_a_deletion_is_a_change_where_it_lies_within_a_segment_only() -> None:
    ends = (30, 60, 90)
    within = plan_reuse(101, 0, [match(0, 40), match(40, 100, 45)], Reuse("fast", ends))
    assert ranges(within.pending) == [(40, 60), (100, 101)]
    on_border = plan_reuse(101, 0, [match(0, 60), match(60, 100, 75)], Reuse("fast", ends))
    assert ranges(on_border.pending) == [(100, 101)]


def test_two_prompts_that_meet_within_a_segment_are_a_change() -> None:
    plan = plan_reuse(101, 0, [match(0, 40, record=1), match(40, 100, record=2)], Reuse("fast", (30, 60)))
    assert ranges(plan.pending) == [(40, 60), (100, 101)]


def test_what_keeps_its_place_behind_the_cached_prefix_is_unchanged() -> None:
    assert ranges(plan_reuse(101, 20, [match(20, 100)], Reuse("fast", (50,))).pending) == [(100, 101)]
    moved = plan_reuse(101, 20, [match(20, 100, 25)], Reuse("fast", (50,)))
    assert ranges(moved.pending) == [(20, 50), (100, 101)]


def test_without_segments_all_behind_a_change_is_run() -> None:
    plan = plan_reuse(101, 0, [match(0, 60), match(63, 100, 61)], Reuse("fast"))
    assert ranges(plan.pending) == [(60, 101)]
    assert (plan.num_exact, plan.num_placed) == (0, 60)  # whoever stored it may have had another prompt


def test_short_matches_are_run() -> None:
    short = match(10, 10 + FEWEST_TOKENS - 1)
    plan = plan_reuse(101, 0, [short, match(40, 100)], Reuse("turbo"))
    assert ranges(plan.pending) == [(0, 40), (100, 101)]


def test_what_saves_too_little_is_not_worth_the_taint() -> None:
    assert plan_reuse(101, 1, [match(50, 100)], Reuse("turbo")).num_placed == 50
    spared = plan_reuse(101, 1, [match(51, 100)], Reuse("turbo"))
    assert (spared.num_placed, spared.num_exact, spared.generation) == (0, 101, 0)
    assert spared.by_reason == {"changed": 100}


def test_what_has_missed_too_many_changes_is_not_taken_over_at_all() -> None:
    old = match(50, 80, generation=MAX_GENERATION)
    plan = plan_reuse(101, 0, [match(0, 40), old], Reuse("turbo"))
    assert (plan.num_placed, plan.num_exact, plan.generation) == (0, 101, 0)


def test_a_generation_counts_changes_and_not_turns() -> None:
    """A change makes KV one generation older; what follows in later turns, with nothing new before it, does not."""
    lineage = Lineage()
    changed = plan_reuse(101, 0, [match(0, 40), match(43, 100, 41)], Reuse("turbo"), lineage)
    assert changed.generation == 1
    lineage.add(changed.placed, 1, [(40, 43), (100, 110)])
    found = [match(0, 40), match(40, 43 + 5, 40, 1, 1), match(48, 100, 46), match(100, 110, 100, 1, 1)]
    assert plan_reuse(121, 0, found, Reuse("turbo"), lineage).generation == 2, "that is another prompt"
    found = [match(0, 40), match(43, 100, 41), match(100, 110, 100, 1, 1)]
    assert plan_reuse(121, 0, found, Reuse("turbo"), lineage).generation == 2, "the changed tokens are lost"
    long = plan_reuse(151, 0, [match(0, 40), match(60, 140, 41)], Reuse("turbo"), lineage)
    lineage.add(long.placed, 2, [(40, 60), (140, 160)])
    found = [match(0, 40), match(40, 60, 40, 2, 1), match(60, 140, 41), match(140, 160, 140, 2, 1)]
    again = plan_reuse(181, 0, found, Reuse("fast", (30, 100, 160)), lineage)
    assert again.generation == 1
    assert ranges(again.pending) == [(160, 181)]
    moved = plan_reuse(181, 0, [*found[:3], match(140, 150, 150, 2, 1)], Reuse("fast", (30, 100, 160)), lineage)
    assert moved.generation == 2


def test_behind_the_cached_prefix_a_place_in_an_earlier_prompt_is_kept_too() -> None:
    lineage = Lineage()
    lineage.add([match(20, 90, 10)], None, [])
    kept = plan_reuse(101, 20, [match(20, 90, 10)], Reuse("fast", (40,)), lineage)
    assert (kept.generation, ranges(kept.pending)) == (0, [(90, 101)])
    other = plan_reuse(101, 20, [match(20, 90, 11)], Reuse("fast", (40,)), lineage)
    assert (other.generation, ranges(other.pending)) == (1, [(20, 40), (90, 101)])


def test_only_the_last_prompts_are_remembered() -> None:
    lineage = Lineage(most=2)
    for record in (5, 6, 7):
        lineage.add([match(20, 80, 10, record)], None, [])
    assert [lineage.continues(None, match(20, 80, 10, record)) for record in (5, 6, 7)] == [False, True, True]
    lineage.forget()
    assert not lineage.continues(None, match(20, 80, 10, 7))


def test_the_budget_goes_to_what_follows_changes_most_closely() -> None:
    plan = plan_reuse(121, 0, [match(0, 40), match(50, 120, 40)], Reuse("turbo", budget=0.1))
    assert ranges(plan.pending) == [(40, 57), (120, 121)]
    assert plan.by_reason == {"changed": 11, "budget": 7}


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "quick"},
        {"budget": 1.5},
        {"budget": float("nan")},
        {"segment_ends": (5, 3)},
        {"recompute": ((5, 3),)},
        {"recompute": ((-1, 3),)},
    ],
)
def test_senseless_numbers_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RequestError):
        Reuse(**wrong)  # type: ignore[arg-type]


def test_segments_end_where_their_tokens_do() -> None:
    assert Reuse.from_segments([PromptSegment([1, 2, 3]), PromptSegment([4])], "fast").segment_ends == (3, 4)
