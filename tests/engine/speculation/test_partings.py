"""Where two merges part, a merge draft has a branch, and it is the other merge from there on."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation import MergeDraft
from engine.speculation.copy_plan import CHANCE, CHANCE_BEHIND_DEPARTURE
from engine.types import Draft

ORIGINAL = list(range(100, 200))
edits = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 4), st.lists(st.integers(0, 30), max_size=5)), max_size=4
).map(lambda drawn: sorted(drawn, key=lambda edit: edit[0]))


def edited(changes: Sequence[tuple[int, int, list[int]]]) -> list[int]:
    """The original with some of its tens begun otherwise."""
    tens = {ten: [*new, *ORIGINAL[10 * ten + gone : 10 * ten + 10]] for ten, gone, new in changes}
    return [each for ten in range(10) for each in tens.get(ten, ORIGINAL[10 * ten : 10 * ten + 10])]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def drafts(draft: MergeDraft, target: Sequence[int]) -> list[tuple[int, Draft]]:
    """How much was written before each draft, where the target is written."""
    written, found = 0, []
    while written < len(target):
        proposed = draft.propose(target[:written], 1000)
        found.append((written, proposed))
        written += common(proposed.token_ids, target[written:]) + 1
    return found


@given(edits, edits)
def test_until_the_model_departs_it_is_the_other_merge_from_the_first_difference_on(
    first: list[tuple[int, int, list[int]]], second: list[tuple[int, int, list[int]]]
) -> None:
    best, other = edited(first), edited(second)
    branch = MergeDraft(merges=[best, other], original=ORIGINAL).propose([], 1000).branch
    at = common(best, other)
    if at == min(len(best), len(other)):
        assert branch is None, "where one of them ends, they do not part"
    else:
        assert branch is not None
        assert (branch.at, branch.chance, branch.source) == (at, CHANCE, "merge")
        assert list(branch.token_ids) == other[at : at + len(best) - at]


@given(edits, edits, edits)
def test_whatever_is_written_a_branch_is_another_merge_that_goes_on_otherwise(
    first: list[tuple[int, int, list[int]]],
    second: list[tuple[int, int, list[int]]],
    written: list[tuple[int, int, list[int]]],
) -> None:
    merges = [edited(first), edited(second)]
    for num_written, draft in drafts(MergeDraft(merges=merges, original=ORIGINAL), edited(written)):
        branch = draft.branch
        if branch is not None:
            assert branch.token_ids[0] != draft.token_ids[branch.at]
            assert branch.at + len(branch.token_ids) <= len(draft.token_ids)
            size = len(branch.token_ids)
            assert any(
                merge[place : place + size] == list(branch.token_ids)
                for merge in merges
                for place in range(len(merge) - size + 1)
            )
            if not num_written:
                assert branch.chance == CHANCE


def test_there_is_none_where_there_is_nothing_to_choose_from() -> None:
    merge = edited([(3, 2, [1, 2, 3])])
    assert MergeDraft(merges=[merge], original=ORIGINAL).propose([], 1000).branch is None
    assert MergeDraft(merges=[], original=ORIGINAL).propose([], 1000).branch is None
    assert MergeDraft(merges=[merge, merge], original=ORIGINAL).propose([], 1000).branch is None


def test_behind_a_departure_the_next_parting_is_likelier() -> None:
    merges = [edited([(2, 2, [1, 2, 3]), (7, 1, [4])]), edited([(2, 2, [5, 6, 7]), (7, 1, [8])])]
    target = merges[1][:50]
    (_, at_first), (num_written, later) = drafts(MergeDraft(merges=merges, original=ORIGINAL), target)
    assert (at_first.branch.at, at_first.branch.chance) == (20, CHANCE)
    assert num_written == 21
    assert (later.branch.chance, list(later.branch.token_ids[:2])) == (CHANCE_BEHIND_DEPARTURE, [4, 171])
    assert later.token_ids[later.branch.at] == 8
