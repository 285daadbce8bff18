"""What sequences share, to the token, and what they never share."""

from __future__ import annotations

import pytest

from engine.kv_cache import KVPages, PageCopy, root_key
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
    assert pool.pages.page_table(2) == []
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
