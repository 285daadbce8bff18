"""The copy draft follows edits of its source, proposes nothing but copies, and needs few passes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.speculation.copy_draft import CopyDraft

FILE = list(range(100, 140))
WINDOW = 256


def proposal(sources: list[list[int]], output: list[int], max_tokens: int = 5) -> list[int]:
    return list(CopyDraft(sources).propose(output, max_tokens).token_ids)


def test_copying_begins_at_the_start_of_the_first_source() -> None:
    assert proposal([FILE, [7, 8]], []) == FILE[:5]


def test_what_was_copied_is_gone_on_with() -> None:
    assert proposal([FILE], FILE[:10]) == FILE[10:15]


def test_a_substituted_token_is_passed_over() -> None:
    assert proposal([FILE], [*FILE[:10], 7]) == FILE[11:16]


def test_behind_an_insertion_the_copy_is_found_again() -> None:
    inserted = [*FILE[:10], 1, 2, 3, 4, 5]
    assert proposal([FILE], [*inserted, FILE[10], FILE[11]]) == FILE[12:17]


def test_behind_a_deletion_the_copy_is_found_again() -> None:
    assert proposal([FILE], [*FILE[:10], FILE[20], FILE[21]]) == FILE[22:27]


def test_the_copy_jumps_back_to_what_is_written_again() -> None:
    assert proposal([FILE], [*FILE[:30], FILE[5], FILE[6]]) == FILE[7:12]


def test_new_text_is_copied_from_the_edit_and_the_rest_from_the_file() -> None:
    edit = [*FILE[8:10], 1, 2, 3, 4, 5, 6, *FILE[10:12]]
    assert proposal([FILE, edit], [*FILE[:10], 1, 2]) == [3, 4, 5, 6, FILE[10]]
    assert proposal([FILE, edit], [*FILE[:10], 1, 2, 3, 4, 5, 6, *FILE[10:12]]) == []  # the edit ends: no guess
    assert proposal([FILE, edit], [*FILE[:10], 1, 2, 3, 4, 5, 6, *FILE[10:13]]) == FILE[13:18]


def test_of_repeated_places_the_one_with_the_longest_match_is_taken() -> None:
    near, far = [3, 5, 61], [7, 2, 3, 5, 60]
    assert proposal([[1, 2, 3, 4, *near, *far]], [1, 2, 3, 5], 1) == [60]


def test_of_equal_places_one_ahead_is_taken_before_a_nearer_one_behind() -> None:
    source = [50, 51, 1, 10, 11, 12, 13, 14, 50, 51, 2, 15, 50, 51, 3]
    assert proposal([source], [50, 51, 1, 99, 50, 51], 1) == [2]


def test_of_equal_places_behind_the_nearest_is_taken() -> None:
    source = [50, 51, 1, 10, 50, 51, 2, 11, 12, 13]
    assert proposal([source], [*source[:9], 99, 50, 51], 1) == [2]


def test_the_proposal_ends_with_the_source_and_keeps_to_the_limit() -> None:
    assert proposal([FILE], FILE[:38], 9) == FILE[38:]
    assert proposal([FILE], FILE, 9) == []
    assert proposal([FILE], [], 0) == []


@pytest.mark.parametrize("sources", [[], [[]], [[], []], [[1]]])
def test_sources_without_tokens_propose_nothing_new(sources: list[list[int]]) -> None:
    draft = CopyDraft(sources)
    assert draft.propose([5, 6], 4).token_ids in ([], [1])
    assert draft.propose([5, 6, 7], 4).token_ids == []


few_ids = st.lists(st.integers(0, 4), max_size=30)


@given(st.lists(few_ids, max_size=3), few_ids, st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_whatever_is_written_the_proposal_is_a_piece_of_a_source(
    sources: list[list[int]], output: list[int], strides: list[int]
) -> None:
    draft, seen = CopyDraft(sources), 0
    for stride in strides:
        seen = min(len(output), seen + stride)
        proposed = list(draft.propose(output[:seen], 6).token_ids)
        assert len(proposed) <= 6
        assert any(
            proposed == source[at : at + len(proposed)] for source in [*sources, []] for at in range(len(source) + 1)
        )


@given(few_ids, few_ids, st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_the_proposal_does_not_depend_on_how_the_output_came(
    source: list[int], output: list[int], strides: list[int]
) -> None:
    draft, seen = CopyDraft([source]), 0
    for stride in strides:
        seen = min(len(output), seen + stride)
        draft.propose(output[:seen], 1 + stride)
    assert draft.propose(output, 9) == CopyDraft([source]).propose(output, 9)


def num_passes(target: list[int], draft: CopyDraft) -> int:
    """Passes that write `target`, if the model wants exactly that: each confirms a prefix and gives one token."""
    written, passes = 0, 0
    while written < len(target):
        proposed = draft.propose(target[:written], WINDOW).token_ids
        accepted = 0
        while accepted < len(proposed) and target[written : written + accepted + 1] == proposed[: accepted + 1]:
            accepted += 1
        written += accepted + 1
        passes += 1
    return passes


def code_like(num_tokens: int, seed: int) -> list[int]:
    """Tokens that repeat as code does: lines out of a small stock, with the odd new word."""
    rng = random.Random(seed)
    lines = [[rng.randrange(200) for _ in range(rng.randrange(3, 12))] for _ in range(60)]
    tokens: list[int] = []
    while len(tokens) < num_tokens:
        tokens += [*rng.choice(lines), rng.randrange(200, 5000)]
    return tokens[:num_tokens]


def test_an_unchanged_file_takes_a_handful_of_passes() -> None:
    """Each confirms the window and gives one token: 8 * 257 > 2,000."""
    target = code_like(2000, seed=0)
    assert num_passes(target, CopyDraft([target])) == 8


def test_a_few_edits_of_a_large_file_take_few_passes() -> None:
    source = code_like(3000, seed=1)
    inserted = [6000 + number for number in range(30)]
    edit = [*source[490:500], *inserted, *source[500:510]]
    target = source[:500] + inserted + source[500:1500] + source[1540:2500] + [7000] + source[2501:]
    assert num_passes(target, CopyDraft([source, edit])) <= 30
    assert num_passes(target, CopyDraft([[]])) == len(target)
