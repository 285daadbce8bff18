"""What sequences share, to the token; what is evicted; and what a sliding window gives back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import NO_PAGE, KVPages, PageCopy, root_key
from tests.engine.kv_cache.fake_pool import FakePool

PROMPT = list(range(100, 111))  # 11 tokens: with pages of 4, two whole ones and 3 tokens


def test_a_closed_sequence_is_found_again_to_the_token() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT)
    for num_common in range(len(PROMPT) + 1):
        assert pool.pages.num_cached([*PROMPT[:num_common], 7, 7], b"root") == num_common


def test_the_last_token_is_always_run() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT)
    assert [pool.pages.num_cached(PROMPT[:length], b"root") for length in (0, 1, 4, 5, 8, 11)] == [0, 0, 3, 4, 7, 10]


def test_whole_pages_are_shared_and_the_rest_is_copied() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.open(1, PROMPT)
    pool.run(1, PROMPT)
    first = list(pool.pages.page_table(1))
    pool.close(1)
    assert pool.open(2, [*PROMPT[:10], 7, 7]) == 10
    table = list(pool.pages.page_table(2))
    assert table[:2] == first[:2]
    assert pool.pages.take_copies() == [PageCopy(first[2], table[2], 2)]
    assert pool.pages.take_copies() == []


def test_of_pages_that_begin_alike_the_one_with_most_in_common_is_copied() -> None:
    pool = FakePool(KVPages(64, 4))
    for sequence_id, tail in enumerate([[1, 2, 3, 4], [1, 2, 9], [1, 2, 5, 6], [1], [2, 2, 5, 7]]):
        pool.serve(sequence_id, [*PROMPT[:4], *tail])
    assert pool.open(10, [*PROMPT[:4], 1, 2, 5, 7, 8]) == 7
    pool.check_all()


def test_what_runs_is_shared_as_soon_as_a_page_is_full() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.open(1, PROMPT)
    pool.run(1, PROMPT[:7])
    assert pool.pages.num_cached(PROMPT, b"root") == 4  # its second page is still written to
    pool.run(1, PROMPT[7:8])
    assert pool.open(2, PROMPT) == 8
    assert pool.pages.page_table(2) == pool.pages.page_table(1)[:2]


def test_the_second_to_compute_a_page_keeps_its_own() -> None:
    pool = FakePool(KVPages(16, 4))
    for sequence_id in (1, 2):
        pool.open(sequence_id, PROMPT)
    for sequence_id in (1, 2):
        pool.run(sequence_id, PROMPT)
    assert not set(pool.pages.page_table(1)) & set(pool.pages.page_table(2))
    pool.close(1)
    pool.close(2)
    assert pool.pages.stats().num_cached == 3  # what was there twice is cached once
    pool.pages.check_integrity()


def test_a_page_filled_further_leaves_the_shorter_entry_right() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT[:6])
    pool.serve(2, PROMPT)
    assert pool.open(3, [*PROMPT[:6], 7]) == 6
    assert pool.open(4, PROMPT) == 10
    pool.check_all()


def test_a_page_that_begins_with_these_tokens_serves_for_them() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT)
    pool.serve(2, PROMPT[:10])
    assert pool.pages.stats().num_cached == 3


@pytest.mark.parametrize(
    "other", [("b", "s", None), ("a", "t", None), ("a", "s", ""), ("a", "s", "x"), ("as", "", None)]
)
def test_models_tenants_and_adapters_share_nothing(other: tuple[str, str, str | None]) -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT, root_key(b"a", "s", None))
    assert pool.pages.num_cached(PROMPT, root_key(b"a", "s", None)) == 10
    assert pool.pages.num_cached(PROMPT, root_key(other[0].encode(), *other[1:])) == 0


def test_growing_beyond_the_pool_changes_nothing() -> None:
    pool = FakePool(KVPages(4, 4))
    pool.serve(1, PROMPT[:8])
    pool.open(2, [7] * 20)
    assert not pool.pages.grow(2, 17)
    assert list(pool.pages.page_table(2)) == []
    assert pool.pages.num_cached(PROMPT, b"root") == 8
    assert pool.pages.grow(2, 16)  # the cached pages go
    assert pool.pages.stats().num_evicted == 2
    pool.pages.check_integrity()


def test_there_is_no_copy_where_the_rest_of_the_prompt_needs_the_page() -> None:
    pool = FakePool(KVPages(3, 4))
    pool.serve(1, PROMPT[:7])
    assert pool.open(2, [*PROMPT[:6], *[7] * 6]) == 4  # 3 pages, and one more for the source until the copy is done
    assert pool.pages.take_copies() == []
    assert pool.run(2, [*PROMPT[4:6], *[7] * 6])
    pool.close(2)
    pool.pages.forget()
    pool.serve(1, PROMPT[:7])
    assert pool.open(2, [*PROMPT[:6], 7, 7]) == 6
    pool.check_all()


def test_the_source_of_a_copy_is_kept_until_the_copy_is_taken() -> None:
    pool = FakePool(KVPages(3, 4))
    pool.serve(1, PROMPT[:3])
    assert pool.open(2, [*PROMPT[:3], 7]) == 3
    pool.open(3, [8] * 8)
    assert not pool.pages.grow(3, 8)
    assert pool.pages.grow(3, 4)
    pool.check_all()
    assert pool.pages.grow(3, 8)


def test_closed_before_its_copy_was_taken_a_sequence_leaves_nothing_behind() -> None:
    pool = FakePool(KVPages(4, 4))
    pool.serve(1, PROMPT[:7])
    assert pool.open(2, [*PROMPT[:6], 7, 7]) == 6
    pool.close(2)
    assert pool.pages.take_copies() == []
    assert pool.pages.stats().num_cached == 2
    pool.check_all()
    assert pool.open(3, [*PROMPT[:7], 8]) == 7
    pool.check_all()


def test_committing_before_the_copy_is_done_is_refused() -> None:
    pool = FakePool(KVPages(4, 4))
    pool.serve(1, PROMPT[:7])
    pool.pages.open(2, [*PROMPT[:6], 7], b"root")
    with pytest.raises(AssertionError, match="before the sequence's copy was done"):
        pool.pages.commit(2, [7])


def test_rows_of_rejected_drafts_are_never_matched() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.open(1, PROMPT)
    pool.run(1, PROMPT[:5], num_rejected=6)
    pool.close(1)
    assert pool.pages.num_cached([*PROMPT, 7], b"root") == 5
    assert pool.pages.stats().num_cached == 2


def test_forgetting_drops_what_is_only_cached() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT, retain_s=100.0)
    pool.open(2, PROMPT[:5])
    pool.pages.forget()
    assert pool.pages.num_cached(PROMPT, b"root") == 4  # held by 2
    assert pool.pages.stats().num_evicted == 0
    pool.close(2)
    pool.pages.forget()
    assert pool.pages.stats().num_free == 16
    pool.pages.check_integrity()


def test_hits_count_once_with_the_first_pass() -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(1, PROMPT)
    pool.pages.num_cached(PROMPT, b"root")
    pool.open(2, [*PROMPT[:9], 7])
    pool.close(2)  # taken back before it ran
    pool.open(2, [*PROMPT[:9], 7])
    stats = pool.pages.stats()
    assert (stats.num_queries, stats.num_hits) == (11, 0)
    assert (stats.num_in_use, stats.num_cached, stats.num_free) == (4, 0, 12)  # two shared, the copy and its source
    pool.run(2, [7])
    pool.run(2, [7])
    stats = pool.pages.stats()
    assert (stats.num_queries, stats.num_hits) == (21, 9)
    assert stats.hit_rate == stats.rolling_hit_rate == 9 / 21
    assert (stats.num_in_use, stats.num_cached, stats.num_free) == (3, 1, 12)
    assert stats.num_pages == 16


@pytest.mark.parametrize(("num_pages", "page_size", "window"), [(0, 4, None), (4, 0, None), (4, 4, 0)])
def test_a_pool_of_nothing_is_refused(num_pages: int, page_size: int, window: int | None) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        KVPages(num_pages, page_size, window=window)


def test_a_long_chain_is_let_go_without_recursion() -> None:
    pages = KVPages(20_000, 1)
    pages.open(1, [0], b"root")
    pages.grow(1, 20_000)
    pages.commit(1, list(range(20_000)))
    pages.close(1)
    assert pages.num_cached(range(20_001), b"root") == 20_000
    pages.forget()
    assert pages.stats().num_free == 20_000


# Eviction: which pages go first, and which prefixes can be reached afterwards.


def test_a_twin_takes_the_place_of_an_evicted_page() -> None:
    pool = FakePool(KVPages(6, 4))
    for sequence_id in (1, 2):
        pool.open(sequence_id, PROMPT)
    pool.run(1, PROMPT[:8])
    pool.run(2, PROMPT[:8])
    pool.close(1)
    pool.open(3, [7] * 16)
    assert pool.run(3, [7] * 16)  # needs the two pages of 1, which is all that was entered
    assert pool.pages.num_cached(PROMPT, b"root") == 0
    pool.close(2)
    assert pool.pages.num_cached(PROMPT, b"root") == 8
    pool.pages.check_integrity()


def test_least_recently_used_goes_first_and_tails_before_heads() -> None:
    pool = FakePool(KVPages(6, 4))
    old, new = [1] * 12, [2] * 12
    pool.serve(1, old)
    pool.serve(2, new)
    pool.open(3, [3] * 20)
    lengths = []
    for num_tokens in range(4, 24, 4):
        assert pool.pages.grow(3, num_tokens)
        lengths.append((pool.pages.num_cached([*old, 0], b"root"), pool.pages.num_cached([*new, 0], b"root")))
    assert lengths == [(8, 12), (4, 12), (0, 12), (0, 8), (0, 4)]


def test_a_shared_head_is_as_young_as_its_youngest_use() -> None:
    pool = FakePool(KVPages(5, 4))
    pool.serve(1, [1] * 8)
    pool.serve(2, [2] * 8)
    pool.serve(3, [1, 1, 1, 1, 9])  # uses the head of 1 again, and not its tail
    pool.open(4, [4] * 8)
    assert pool.pages.grow(4, 4)
    assert pool.pages.num_cached([1] * 9, b"root") == 4
    assert pool.pages.grow(4, 12)
    assert pool.pages.num_cached([2] * 9, b"root") == 0
    assert pool.pages.num_cached([1] * 9, b"root") == 4


def test_to_be_copied_from_is_a_use() -> None:
    pool = FakePool(KVPages(4, 4))
    pool.serve(1, [1, 1, 1])
    pool.serve(2, [2, 2, 2])
    pool.serve(3, [1, 1, 3])
    pool.open(4, [4] * 8)
    assert pool.pages.grow(4, 8)
    assert pool.pages.num_cached([1, 1, 1, 0], b"root") == 3
    assert pool.pages.num_cached([2, 2, 2, 0], b"root") == 0


def test_what_is_retained_goes_last_until_its_time_is_over() -> None:
    now = [0.0]
    pool = FakePool(KVPages(4, 4, clock=lambda: now[0]))

    def left_after_two_more_pages() -> tuple[int, int]:
        pool.open(3, [3] * 8)
        assert pool.pages.grow(3, 8)
        left = pool.pages.num_cached([1] * 9, b"root"), pool.pages.num_cached([2] * 9, b"root")
        pool.close(3)
        return left

    pool.serve(1, [1] * 8, retain_s=10.0)
    pool.serve(2, [2] * 8)
    assert left_after_two_more_pages() == (8, 0)
    pool.serve(2, [2] * 8)
    now[0] = 10.0
    assert left_after_two_more_pages() == (0, 8)


def test_of_the_retained_the_one_that_runs_out_first_goes_first() -> None:
    pool = FakePool(KVPages(4, 4, clock=lambda: 0.0))
    pool.serve(1, [1] * 8, retain_s=10.0)
    pool.serve(2, [2] * 8, retain_s=5.0)
    pool.open(3, [3] * 16)
    assert pool.pages.grow(3, 8)
    assert pool.pages.num_cached([1] * 9, b"root") == 8
    assert pool.pages.num_cached([2] * 9, b"root") == 0
    assert pool.pages.grow(3, 16)  # a hint, not a promise
    assert pool.pages.num_cached([1] * 9, b"root") == 0


def test_of_the_retained_too_tails_go_before_heads() -> None:
    pool = FakePool(KVPages(3, 4, clock=lambda: 0.0))
    pool.serve(1, [1] * 12, retain_s=10.0)
    pool.open(2, [2] * 12)
    lengths = []
    for num_tokens in (4, 8):
        assert pool.pages.grow(2, num_tokens)
        lengths.append(pool.pages.num_cached([1] * 13, b"root"))
    assert lengths == [8, 4]


def test_retention_of_a_tail_retains_its_head() -> None:
    pool = FakePool(KVPages(4, 4, clock=lambda: 0.0))
    pool.serve(1, [1] * 8, retain_s=10.0)
    pool.serve(2, [1] * 4)  # later, and without retention
    pool.serve(3, [3] * 8)
    pool.open(4, [4] * 8)
    assert pool.pages.grow(4, 8)
    assert pool.pages.num_cached([1] * 9, b"root") == 8


def test_without_a_window_nothing_is_reached_through_an_evicted_head() -> None:
    pool = FakePool(KVPages(4, 4))
    for sequence_id in (1, 2):
        pool.open(sequence_id, PROMPT)
    for sequence_id in (1, 2):
        pool.run(sequence_id, PROMPT[:4])
    pool.run(2, PROMPT[4:8])  # behind the head that 1 entered; its own is not entered
    pool.pages.check_integrity()
    pool.close(1)
    pool.open(3, [7] * 8)
    assert pool.run(3, [7] * 8)
    assert pool.pages.stats().num_evicted == 1
    assert pool.pages.num_cached(PROMPT, b"root") == 0
    pool.check_all()
    pool.close(3)
    pool.open(4, PROMPT)
    assert pool.run(4, PROMPT[:4])  # computed anew: what follows is found again
    assert pool.pages.num_cached(PROMPT, b"root") == 8
    pool.pages.check_integrity()


# With a sliding window, pages are given back, and only what the next token sees is needed.


def test_behind_the_window_pages_are_given_back_and_stay_cached() -> None:
    pool = FakePool(KVPages(16, 4, window=5))
    prompt = list(range(16))
    pool.open(1, prompt)
    held = []
    for token_id in prompt:
        pool.run(1, [token_id])
        held.append([page != NO_PAGE for page in pool.pages.page_table(1)].count(True))
    assert list(pool.pages.page_table(1)[:3]) == [NO_PAGE] * 3  # token 16 sees 12 to 16
    assert max(held) == 2 == pool.pages.max_pages(16, 1)
    assert pool.pages.stats().num_cached == 3
    assert pool.open(2, [*prompt[:6], 7]) == 6
    pool.check_all()


def test_with_a_window_only_what_the_next_token_sees_must_be_cached() -> None:
    pool = FakePool(KVPages(5, 4, window=5))
    prompt = list(range(16))
    pool.open(1, prompt)
    for token_id in prompt:
        pool.run(1, [token_id])
    pool.open(2, [7] * 16)
    assert pool.pages.grow(2, 16)  # one page is free, and the three behind the window of 1 go
    pool.close(1)
    assert pool.pages.num_cached([*prompt[:12], 99], b"root") == 0
    assert pool.pages.num_cached([*prompt, 99], b"root") == 16
    pool.close(2)
    assert pool.open(3, [*prompt, 99]) == 16
    assert list(pool.pages.page_table(3)[:3]) == [NO_PAGE] * 3
    pool.check_all()


def test_the_tokens_of_a_copied_page_count_for_the_window() -> None:
    pool = FakePool(KVPages(16, 4, window=6))
    pool.serve(1, PROMPT)
    assert pool.open(2, [*PROMPT[:9], 7, 7]) == 9  # token 9 sees 4 to 9
    assert pool.pages.page_table(2)[0] == NO_PAGE
    pool.check_all()


@given(
    window=st.integers(1, 12) | st.none(),
    page_size=st.integers(1, 5),
    num_tokens=st.integers(1, 40),
    chunk=st.integers(1, 9),
)
def test_a_sequence_holds_at_most_max_pages(window: int | None, page_size: int, num_tokens: int, chunk: int) -> None:
    pages = KVPages(100, page_size, window=window)
    pages.open(1, [0] * num_tokens, b"root")
    most = 0
    for start in range(0, num_tokens, chunk):
        end = min(start + chunk, num_tokens)
        pages.grow(1, end)
        most = max(most, pages.stats().num_in_use)
        pages.commit(1, [0] * (end - start))
    assert most <= pages.max_pages(num_tokens, chunk)
    if window is None:
        assert most == pages.max_pages(num_tokens, chunk)


def test_max_pages_is_reached() -> None:
    pages = KVPages(100, 4, window=6)
    pages.open(1, [0] * 40, b"root")
    most = 0
    for _ in range(40):
        pages.grow(1, pages.num_tokens(1) + 1)
        most = max(most, pages.stats().num_in_use)
        pages.commit(1, [0])
    assert most == pages.max_pages(40, 1) == 3  # 6 tokens may lie in 3 pages: 1 + 4 + 1


# check_integrity() finds damage in each of the books.


def _share_a_page_that_is_written_to(pages: KVPages) -> None:
    table = pages._tables[1]
    pages._tables[2].pages.append(table.pages[-1])
    pages._pool.num_holders[table.pages[-1]] += 1


def _cache_a_page_that_is_written_to(pages: KVPages) -> None:
    tail = pages._tables[1].tail
    assert tail is not None
    pages._cache.extend(tail, (7,), pages._tables[1].pages[-1], 0)


def _queue_a_copy_to_someone_elses_page(pages: KVPages) -> None:
    pages._copies[0] = PageCopy(pages._tables[1].pages[0], 0, 1)
    pages._pool.num_holders[pages._tables[1].pages[0]] += 1


DAMAGE: dict[str, tuple[Callable[[KVPages], object], str]] = {
    "a holder too many": (lambda pages: pages._allocator.hold(pages._tables[1].pages[0]), "hold it"),
    "a page lost": (lambda pages: pages._pool.allocate(1), "hold it"),
    "a page in use is free": (lambda pages: pages._pool._free.__setitem__(pages._tables[1].pages[0], 1), "leaks"),
    "a cached page cannot go": (lambda pages: pages._cache.evictable.pop(0.0), "may be evicted and not"),
    "a page shared and written to": (_share_a_page_that_is_written_to, "will be written to and is shared"),
    "a page cached and written to": (_cache_a_page_that_is_written_to, "will be written to and is cached"),
    "a copy to another's page": (_queue_a_copy_to_someone_elses_page, "no sequence fills"),
    "a sequence too many": (lambda pages: pages._cache.enter(pages._cache.roots[b"root"]), "not counted"),
    "a head older than its tail": (
        lambda pages: setattr(pages._cache.roots[b"root"], "last_used", 0),
        "before its tail",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(name: str) -> None:
    pool = FakePool(KVPages(16, 4))
    pool.serve(0, [9] * 5)
    for sequence_id in (1, 2):
        pool.open(sequence_id, [sequence_id] * 7)
        pool.run(sequence_id, [sequence_id] * 6)
    pool.pages.check_integrity()
    damage, reason = DAMAGE[name]
    damage(pool.pages)
    with pytest.raises(AssertionError, match=reason):
        pool.pages.check_integrity()
