"""The first token at which two prompts part."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.prompt_difference import PromptDifference, first_difference

IDS = st.lists(st.integers(0, 2), max_size=6)


@given(common=IDS, first=IDS, second=IDS)
def test_up_to_the_difference_both_are_equal(common: list[int], first: list[int], second: list[int]) -> None:
    first, second = common + first, common + second
    difference = first_difference(first, second)
    if difference is None:
        assert first == second
        return
    assert first[: difference.index] == second[: difference.index]
    assert first[difference.index : difference.index + 1] == [difference.first_id][: len(first) - difference.index]
    assert second[difference.index : difference.index + 1] == [difference.second_id][: len(second) - difference.index]
    assert difference.first_id != difference.second_id


def test_an_end_is_a_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2]) == PromptDifference(2, 3, None)
    assert first_difference([], [5]) == PromptDifference(0, None, 5)
    assert first_difference([1, 2], [1, 4]) == PromptDifference(1, 2, 4)
    assert first_difference([1], [1]) is None
