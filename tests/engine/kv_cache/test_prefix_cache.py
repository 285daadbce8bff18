"""The prefix cache: its keys, its matches, its eviction queue and its hit rates."""

from __future__ import annotations

from hashlib import blake2b
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import KVPages
from engine.kv_cache.page_pool import ROLLING_REQUESTS, HitCounter
from engine.kv_cache.prefix_cache import ChainNode, EvictionQueue, PrefixCache, page_key, root_key
from engine.types import count_common_prefix
from tests.engine.kv_cache.fake_pool import FakePool

# Equal keys mean equal prefixes under equal roots.


SHORT = st.text(st.sampled_from("\0\1a\ud800"), max_size=3)
FIELDS = st.tuples(SHORT.map(lambda text: text.encode("utf-8", "surrogatepass")), SHORT, st.none() | SHORT)


@given(st.lists(FIELDS, unique=True, min_size=2, max_size=20))
def test_roots_are_equal_for_equal_fields_only(fields: list[tuple[bytes, str, str | None]]) -> None:
    roots = [root_key(*each) for each in fields]
    assert len(set(roots)) == len(fields)
    assert not any(a.startswith(b) for a in roots for b in roots if a != b)
    assert roots == [root_key(*each) for each in fields]


def test_a_page_key_hashes_its_parent_and_its_ids_as_little_endian_uint32() -> None:
    expected = blake2b(b"parent" + bytes([1, 0, 0, 0, 0, 2, 0, 0]), digest_size=16).digest()
    assert page_key(b"parent", [1, 512]) == expected


# The match equals a look at every entry; keys that collide are misses.


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


# The common prefix of two token sequences equals that of a loop.


FEW_IDS = st.lists(st.integers(0, 2), max_size=6)


@given(num_common=st.integers(0, 300), one=FEW_IDS, other=FEW_IDS)
def test_the_prefix_is_that_of_a_loop(num_common: int, one: list[int], other: list[int]) -> None:
    common = [number % 7 for number in range(num_common)]
    one, other = common + one, common + other
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert count_common_prefix(one, other) == expected
    assert count_common_prefix(tuple(other), tuple(one)) == expected
    assert count_common_prefix(np.array(one, dtype=np.uint32), np.array(other, dtype=np.uint32)) == expected


def test_the_end_of_a_sequence_ends_the_prefix() -> None:
    assert count_common_prefix([1, 2, 3], [1, 2]) == 2
    assert count_common_prefix([], [5]) == 0
    assert count_common_prefix([1], [1]) == 1


# The eviction queue gives the same order as sorting all that is queued.


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "discard", "pop"]),
        st.integers(0, 9),
        st.integers(1, 4),
        st.sampled_from([0.0, 0.0, 2.0, 5.0, 20.0]),
    ),
    max_size=60,
)


@given(STEPS)
def test_pages_go_in_the_order_of_a_sort(steps: list[tuple[str, int, int, float]]) -> None:
    queue = EvictionQueue()
    queued: dict[int, ChainNode] = {}
    uses: dict[int, int] = {}
    for now, (step, page, depth, retain_s) in enumerate(steps):
        last_used = now // 5  # several pages are used together
        if step == "push" and uses.get(page) != last_used:
            uses[page] = last_used
            queued[page] = ChainNode(b"", depth=depth, page=page, last_used=last_used)
            queued[page].retained_until = now + retain_s if retain_s else 0.0
            queue.push(queued[page])
        elif step == "push" and page in queued:  # held and given back without being used
            queue.discard(page)
            queue.push(queued[page])
        elif step == "discard":
            queue.discard(page)
            queued.pop(page, None)
        elif step == "pop" and queued:
            node = queue.pop(now)
            assert queued.pop(node.page) is node
            assert all(_order(node, now) <= _order(other, now) for other in queued.values())
        assert len(queue) == len(queued)
        assert all((page in queue) == (page in queued) for page in range(10))


def _order(node: ChainNode, now: float) -> tuple[float, int, int]:
    return node.retained_until if node.retained_until > now else 0.0, node.last_used, -node.depth


def test_stale_entries_are_swept() -> None:
    queue = EvictionQueue()
    node = ChainNode(b"", depth=1, page=0)
    for use in range(10_000):
        node.last_used, node.retained_until = use, float(use % 2)
        queue.push(node)
    assert len(queue._by_use) + len(queue._by_expiry) < 100
    assert queue.pop(0.0) is node


# Hit rates count tokens, over all requests and over the last ones.


def test_the_rolling_rate_forgets_old_requests() -> None:
    hits = HitCounter()
    hits.count(1000, 0)
    for _ in range(ROLLING_REQUESTS - 1):
        hits.count(10, 5)
    assert hits.recent_hit_rate == 495 / 1990
    hits.count(10, 5)
    assert hits.recent_hit_rate == 0.5
    assert (hits.num_queries, hits.num_hits) == (2000, 500)


def test_nothing_asked_is_nothing_hit() -> None:
    stats = KVPages(4, 4).stats()
    assert stats.num_hits == stats.num_queries == stats.rolling_hit_rate == 0
