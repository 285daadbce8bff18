"""Sharing tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler.scheduler import split_evenly


@pytest.mark.parametrize(
    ("wanted", "total", "expected"),
    [
        ([], 7, []),
        ([3, 4], 7, [3, 4]),
        ([3, 4], 0, [0, 0]),
        ([5, 100, 100], 65, [5, 30, 30]),
        ([100, 5, 100], 66, [31, 5, 30]),
        ([100, 100], 65, [33, 32]),
        ([9, 9, 9], 2, [2, 0, 0]),
        ([1, 9, 9], 5, [1, 2, 2]),
    ],
)
def test_examples(wanted: list[int], total: int, expected: list[int]) -> None:
    assert split_evenly(wanted, total) == expected


@given(st.lists(st.integers(0, 40), max_size=8), st.integers(0, 120))
def test_shares_are_those_of_raising_the_level_step_by_step(wanted: list[int], total: int) -> None:
    level = 0
    while level < max(wanted, default=0) and sum(min(want, level + 1) for want in wanted) <= total:
        level += 1
    expected = [min(want, level) for want in wanted]
    for place, want in enumerate(wanted):
        expected[place] += min(want - expected[place], total - sum(expected))
    assert split_evenly(wanted, total) == expected
    assert sum(expected) == min(total, sum(wanted))
