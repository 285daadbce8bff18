"""How much of what was asked for was in the cache, and what the pool is filled with."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

ROLLING_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class PoolStats:
    """One look at the pool.

    num_queries and num_hits: tokens that sequences were opened with, and those of them that were cached. A sequence
    counts once, with its first commit, and again where it is opened again. rolling_hit_rate: the same over the last
    `ROLLING_REQUESTS`. num_evicted: pages that the cache lost because memory was
    needed. num_in_use, num_cached, num_free: pages that sequences hold, that are only cached, and that are empty; they
    add up to num_pages.
    """

    num_queries: int
    num_hits: int
    rolling_hit_rate: float
    num_evicted: int
    num_in_use: int
    num_cached: int
    num_free: int

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self.num_in_use + self.num_cached + self.num_free

    @property
    def hit_rate(self) -> float:
        """Share of all tokens asked for that was cached."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0


class HitCounter:
    """Tokens asked for and found, in all and over the last `ROLLING_REQUESTS` requests."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_hits = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=ROLLING_REQUESTS)

    def count(self, num_queries: int, num_hits: int) -> None:
        """One request asked for so many tokens, and so many were cached."""
        self.num_queries += num_queries
        self.num_hits += num_hits
        self._recent.append((num_queries, num_hits))

    @property
    def rolling_hit_rate(self) -> float:
        """Share of the last requests' tokens that was cached."""
        num_queries = sum(queries for queries, _ in self._recent)
        return sum(hits for _, hits in self._recent) / num_queries if num_queries else 0.0
