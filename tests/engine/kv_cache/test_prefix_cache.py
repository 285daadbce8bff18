"""The match equals a look at every entry; keys that collide are misses."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import KVPages
from engine.kv_cache.prefix_cache import PrefixCache
from engine.token_prefix import count_common_prefix
from tests.engine.kv_cache.fake_pool import FakePool

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


@given(entries=st.lists(IDS, max_size=30), query=st.lists(st.integers(0, 2), max_size=7))
def test_among_many_children_the_longest_common_prefix_is_found(
    entries: list[tuple[int, ...]], query: list[int]
) -> None:
    cache = PrefixCache(page_size=6)
    root = cache.match(b"root", [], 0).tail
    cache.enter(root)
    for page, ids in enumerate(entries):
        cache.add_leaf(root, ids, page, last_used=0)
    match = cache.match(b"root", query, len(query))
    expected = max((count_common_prefix(query, ids) for ids in entries), default=0)
    assert match.tail.depth * 6 + match.num_partial == expected
    if match.partial is not None:
        assert match.partial.token_ids[: match.num_partial] == tuple(query[: match.num_partial])


def test_other_tokens_under_a_taken_key_are_a_miss_and_end_the_chain() -> None:
    with mock.patch("engine.kv_cache.prefix_cache.page_key", lambda parent, ids: parent + bytes(ids[1:])):
        pool = FakePool(KVPages(16, 2))
        pool.serve(1, [1, 7])
        assert pool.serve(2, [2, 7, 3, 3, 9]) == 0
        assert pool.pages.num_cached([2, 7, 9], b"root") == 0
        assert pool.pages.num_cached([1, 7, 3, 3, 9], b"root") == 2
        pool.pages.check_integrity()


def test_another_prefix_under_a_taken_key_is_a_miss_and_ends_the_chain() -> None:
    with mock.patch("engine.kv_cache.prefix_cache.page_key", lambda parent, ids: bytes(ids)):
        pool = FakePool(KVPages(16, 2))
        pool.serve(1, [1, 1, 5, 5])
        assert pool.serve(2, [2, 2, 5, 5, 6, 6, 9]) == 0
        assert pool.pages.num_cached([2, 2, 5, 5, 9], b"root") == 2
        assert pool.pages.num_cached([1, 1, 5, 5, 6, 6, 9], b"root") == 4
        pool.pages.check_integrity()
