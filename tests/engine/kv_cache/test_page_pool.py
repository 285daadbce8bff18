"""The page pool gives each page out once, and gives neighbouring pages where it can."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import NO_PAGE, KVPages, page_runs
from engine.kv_cache.page_pool import GROWTH_ROOM, PagePool


@given(st.integers(1, 60), st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=40))
def test_a_page_is_given_out_once(num_pages: int, steps: list[tuple[bool, int]]) -> None:
    pool = PagePool(num_pages)
    used: list[int] = []
    for is_allocation, count in steps:
        if is_allocation and count <= pool.num_free:
            pages = pool.allocate(count, used[-1] if used else NO_PAGE)
            assert len(pages) == count == len(set(pages))
            assert not set(pages) & set(used)
            assert not any(map(pool.is_free, pages))
            used += pages
        elif not is_allocation:
            for page in used[::count]:
                assert pool.release(page) == 0
                pool.free(page)
            del used[::count]
        assert pool.num_free == num_pages - len(used) == sum(map(pool.is_free, range(num_pages)))


def test_a_page_in_use_is_not_freed() -> None:
    pool = PagePool(4)
    (page,) = pool.allocate(1)
    pool.hold(page)
    assert pool.release(page) == 1
    with pytest.raises(AssertionError, match="in use"):
        pool.free(page)
    pool.release(page)
    pool.free(page)
    with pytest.raises(AssertionError, match="free already"):
        pool.free(page)
    with pytest.raises(AssertionError, match="given back twice"):
        pool.release(page)


def test_pages_follow_the_last_one_else_start_a_run_that_is_long_enough() -> None:
    pool = PagePool(12)
    pool.allocate(12)
    for page in (0, 1, 3, 5, 6, 7, 10):
        pool.release(page)
        pool.free(page)
    assert pool.allocate(2, behind=9) == [10, 0]
    assert pool.allocate(3) == [5, 6, 7]
    assert pool.allocate(2) == [1, 3]


def test_a_run_is_begun_where_it_leaves_its_neighbour_room() -> None:
    pool = PagePool(100)
    assert pool.allocate(10) == list(range(10))
    second = 10 + GROWTH_ROOM
    assert pool.allocate(5) == list(range(second, second + 5))
    assert pool.allocate(GROWTH_ROOM, behind=9) == list(range(10, second))


def test_room_is_right_behind_the_last_page_or_a_run_with_pages_to_spare() -> None:
    pool = PagePool(2 + GROWTH_ROOM)
    assert pool.has_room(2, NO_PAGE)
    assert not pool.has_room(3, NO_PAGE)
    pool.allocate(2 + GROWTH_ROOM)
    for page in (0, 5):
        pool.release(page)
        pool.free(page)
    assert pool.has_room(3, behind=4)
    assert not pool.has_room(1, behind=5)
    assert not pool.has_room(1, behind=1 + GROWTH_ROOM)  # the last of the pool
    assert not pool.has_room(1, NO_PAGE)


def num_runs(pages: KVPages, sequence_id: int) -> int:
    return len(page_runs(pages.page_table(sequence_id), pages.page_size, 0, pages.num_tokens(sequence_id)))


def test_a_lone_long_sequence_is_one_run() -> None:
    pages = KVPages(256, 4)
    pages.open(1, [0] * 1024, b"root")
    for end in range(16, 1040, 16):
        pages.grow(1, end)
        pages.commit(1, [0] * 16)
    assert page_runs(pages.page_table(1), 4, 0, 1024) == [(0, 1024)]


@pytest.mark.parametrize("is_full", [False, True])
def test_sequences_that_grow_side_by_side_stay_in_few_runs(is_full: bool) -> None:
    pages = KVPages(1024, 4)
    for sequence_id in range(100, 132 if is_full else 100):
        pages.open(sequence_id, [sequence_id] * 128, b"root")
        pages.grow(sequence_id, 128)
        pages.commit(sequence_id, [sequence_id] * 128)
    for sequence_id in range(100, 132 if is_full else 100):
        pages.close(sequence_id)
    for sequence_id in range(8):
        pages.open(sequence_id, [sequence_id], b"root")
    for length in range(1, 161):
        for sequence_id in range(8):
            assert pages.grow(sequence_id, length)
            pages.commit(sequence_id, [sequence_id])
    assert (pages.stats().num_evicted > 0) == is_full
    assert max(num_runs(pages, sequence_id) for sequence_id in range(8)) <= 40 // GROWTH_ROOM + 3  # of 40 pages


def test_few_pages_are_evicted_for_the_sake_of_long_runs() -> None:
    pages = KVPages(320, 4)
    for sequence_id in range(10):
        pages.open(sequence_id, [sequence_id] * 128, b"root")
        pages.grow(sequence_id, 128)
        pages.commit(sequence_id, [sequence_id] * 128)
        pages.close(sequence_id)
    pages.open(100, [100], b"root")
    pages.grow(100, 1)
    assert pages.stats().num_evicted == 1 + GROWTH_ROOM
    pages.grow(100, 4 + 4 * GROWTH_ROOM)
    assert pages.stats().num_evicted == 1 + GROWTH_ROOM


# Runs of slots equal a look-up of token after token.


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
