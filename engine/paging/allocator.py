"""Pages for those who ask: free ones, then cached ones that nobody uses."""

from __future__ import annotations

from collections.abc import Callable

from engine.paging.chain import ChainNode
from engine.paging.pool import PagePool
from engine.paging.prefix_cache import PrefixCache

SPARE_SHARE = 16
"""Up to 1 / 16 of the pool is kept free of cached pages once it is full, to allocate neighbours from. Without it,
sequences that grow side by side take evicted pages one by one from anywhere: 16 of them with 47 pages each came to 32
runs each, with it to 5 (pool of 2,048 pages, full of cached sequences of 32)."""


class PageAllocator:
    """A page is free in `pool`, or in use, or only cached: entered in `cache` and evictable."""

    def __init__(self, pool: PagePool, cache: PrefixCache, clock: Callable[[], float]) -> None:
        self.num_evicted = 0
        self._pool = pool
        self._cache = cache
        self._clock = clock

    @property
    def num_available(self) -> int:
        """Pages that are free or can be made so."""
        return self._pool.num_free + len(self._cache.evictable)

    def allocate(self, count: int, behind: int) -> list[int]:
        """Pages of the caller's own; there must be as many. Evicts what is missing, and a few more for long runs."""
        pool, evictable = self._pool, self._cache.evictable
        spare = pool.num_pages // SPARE_SHARE
        while pool.num_free < count or (pool.num_free < spare and evictable and not pool.has_room(count, behind)):
            self._drop_next()
            self.num_evicted += 1
        return pool.allocate(count, behind)

    def hold(self, page: int) -> None:
        """One more uses the page."""
        if self._pool.hold(page) == 1:
            self._cache.evictable.discard(page)

    def release(self, page: int) -> None:
        """One less uses the page; the last one leaves it to the cache, if it is entered there."""
        if self._pool.release(page) == 0:
            node = self._cache.by_page.get(page)
            if node is not None:
                self._cache.evictable.push(node)
            else:
                self._pool.free(page)

    def drop(self, node: ChainNode) -> None:
        """Take a node's page out of the cache; it is free once nobody uses it."""
        page = node.page
        is_unused = page in self._cache.evictable
        if is_unused:
            self._cache.evictable.discard(page)
        self._cache.detach(node)
        if is_unused:
            self._pool.free(page)

    def forget(self) -> None:
        """Free all that is only cached."""
        while self._cache.evictable:
            self._drop_next()

    def _drop_next(self) -> None:
        node = self._cache.evictable.pop(self._clock())
        page = node.page
        self._cache.detach(node)
        self._pool.free(page)
