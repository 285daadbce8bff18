"""The order in which cached pages go when memory is needed: least recently used first, tails before heads."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from engine.paging.chain import ChainNode


class EvictionQueue:
    """The cached pages that nobody uses.

    They go by their last use; of those used together the deepest first, so that what is left of a chain is a prefix.
    Pages whose retention has not run out go behind all others, the one that runs out first before the rest.

    Both heaps keep stale entries: one is good while its page is queued under the same last use. This is cheaper than
    finding them, and a heap is swept when most of it is stale.
    """

    def __init__(self) -> None:
        self._queued: dict[int, ChainNode] = {}  # by page
        self._by_use: list[tuple[int, int, int]] = []  # (last_used, -depth, page)
        self._by_expiry: list[tuple[float, int, int, int]] = []  # (retained_until, last_used, -depth, page)

    def __len__(self) -> int:
        return len(self._queued)

    def __contains__(self, page: int) -> bool:
        return page in self._queued

    def push(self, node: ChainNode) -> None:
        """Nobody uses the node's page any more, or its last use or retention changed while queued."""
        self._queued[node.page] = node
        if node.retained_until:
            heappush(self._by_expiry, (node.retained_until, node.last_used, -node.depth, node.page))
        else:
            heappush(self._by_use, (node.last_used, -node.depth, node.page))
        if len(self._by_use) + len(self._by_expiry) > 4 * len(self._queued) + 64:
            self._sweep()

    def discard(self, page: int) -> None:
        """The page is used again, if it was not in use."""
        self._queued.pop(page, None)

    def pop(self, now: float) -> ChainNode:
        """Take out the node whose page is to go next; the queue must not be empty."""
        while self._by_expiry and self._by_expiry[0][0] <= now:
            _, *entry = heappop(self._by_expiry)
            heappush(self._by_use, (entry[0], entry[1], entry[2]))
        while self._by_use:
            last_used, _, page = heappop(self._by_use)
            if self._is_current(last_used, page):
                return self._queued.pop(page)
        while True:
            _, last_used, _, page = heappop(self._by_expiry)
            if self._is_current(last_used, page):
                return self._queued.pop(page)

    def _is_current(self, last_used: int, page: int) -> bool:
        node = self._queued.get(page)
        return node is not None and node.last_used == last_used

    def _sweep(self) -> None:
        self._by_use = [entry for entry in self._by_use if self._is_current(entry[0], entry[2])]
        self._by_expiry = [entry for entry in self._by_expiry if self._is_current(entry[1], entry[3])]
        heapify(self._by_use)
        heapify(self._by_expiry)
