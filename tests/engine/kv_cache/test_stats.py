"""Rates are of tokens, in all and over the last requests."""

from __future__ import annotations

from engine.kv_cache import KVPages
from engine.kv_cache.page_pool import ROLLING_REQUESTS, HitCounter


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
    assert stats.hit_rate == stats.rolling_hit_rate == 0.0
