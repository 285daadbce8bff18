"""Runs hold the same slots as a look-up of token after token."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import NO_PAGE, page_runs


@given(st.data(), st.integers(1, 5), st.lists(st.integers(0, 7), min_size=1, max_size=8))
def test_runs_hold_every_token_in_order(data: st.DataObject, page_size: int, table: list[int]) -> None:
    first = data.draw(st.integers(0, len(table) * page_size))
    end = data.draw(st.integers(first, len(table) * page_size))
    runs = page_runs(table, page_size, first, end)
    slots = [slot for start, stop in runs for slot in range(start, stop)]
    assert slots == [table[token // page_size] * page_size + token % page_size for token in range(first, end)]
    assert all(start < stop for start, stop in runs)
    assert all(before[1] != after[0] for before, after in pairwise(runs)), "neighbours are one run"


def test_the_example_of_the_docstring() -> None:
    assert page_runs([7, 8, 3], 4, 2, 11) == [(30, 36), (12, 15)]


def test_pages_behind_the_window_may_stand_before_the_range_and_not_in_it() -> None:
    assert page_runs([NO_PAGE, 0, 1], 4, 4, 12) == [(0, 8)]
    with pytest.raises(AssertionError, match="given back"):
        page_runs([NO_PAGE, 0, 1], 4, 3, 12)
