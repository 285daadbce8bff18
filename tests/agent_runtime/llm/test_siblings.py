"""What tells the readings of an edit apart, as token ids."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from agent_runtime.llm.scorer import NUM_TOKENS_AFTER, count_common_prefix, find_divergence

FILE = list(range(100, 160))
END = [1, 2]
"""The closing tag."""


def test_a_deletion_shows_in_what_comes_instead() -> None:
    kept, deleted = FILE[:30] + FILE[32:] + END, FILE[:30] + FILE[40:] + END
    found = find_divergence([kept, deleted], FILE + END)
    assert found is not None
    assert found.prefix == FILE[:30]
    assert found.parts == (FILE[32:48], FILE[40:48])


def test_a_single_answer_is_told_from_the_file() -> None:
    found = find_divergence([[*FILE[:10], 7, *FILE[10:], *END]], FILE + END)
    assert found is not None
    assert found.prefix == FILE[:10]
    assert found.parts == ([7, *FILE[10 : 10 + NUM_TOKENS_AFTER]],)


def test_nothing_tells_what_is_equal_apart() -> None:
    assert find_divergence([FILE, FILE], FILE) is None


def test_parts_end_with_their_answers() -> None:
    found = find_divergence([[5, 6, *END], [5, *END]], [9, *END])
    assert found is not None
    assert (found.prefix, found.parts) == ([], ([5, 6, *END], [5, *END]))


def test_overlapping_repeats_are_parted_once() -> None:
    """The common end must not reach into the common beginning: a line was added to a run of equal ones."""
    found = find_divergence([[3, 3, 3, *END]], [3, 3, *END])
    assert found is not None
    assert (found.prefix, found.parts) == ([3, 3], ([3, *END],))


texts = st.lists(st.integers(0, 3), max_size=40).map(lambda ids: [*ids, *END])


@example([[1, 2]], [1, 2, 1, 2])
@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_every_part_belongs_to_its_answer_and_is_not_empty(answers: list[list[int]], unchanged: list[int]) -> None:
    found = find_divergence(answers, unchanged)
    if found is None:
        assert all(answer == unchanged for answer in answers)
        return
    behind = []
    for answer, part in zip(answers, found.parts, strict=True):
        assert part
        assert answer[: len(found.prefix) + len(part)] == [*found.prefix, *part]
        behind.append(answer[len(found.prefix) + len(part) :])
    assert all(rest in (unchanged[len(unchanged) - len(rest) :], []) for rest in behind), "what is left tells nothing"
    num_common, shortest = count_common_prefix([*answers, unchanged]), min(map(len, [*answers, unchanged]))
    assert len(found.prefix) == min(num_common, shortest - 1), "as long as it can be"


@given(st.lists(texts, min_size=2, max_size=4, unique_by=tuple))
def test_different_answers_have_different_parts(answers: list[list[int]]) -> None:
    found = find_divergence(answers, answers[0])
    assert found is not None
    assert len({tuple(part) for part in found.parts}) == len(answers)
