"""The pool of pages: free pages, holders, page tables and counts."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from engine.kv_cache.prefix_cache import NO_PAGE, ChainNode

GROWTH_ROOM = 8
"""Pages left free after a page in use, if possible, so that its sequence grows on in one run."""


class PagePool:
    """`num_pages` pages, each free or not. `num_holders[page]` counts the tables and queued copies that use a page.

    A page without a holder need not be free: the prefix cache may keep it, and calls `free` in the end.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = num_pages
        self.num_holders = [0] * num_pages
        self._free = bytearray(b"\1") * num_pages  # bytes, because bytearray.find looks for a run at C speed

    def allocate(self, count: int, behind: int = NO_PAGE) -> list[int]:
        """Return `count` free pages, each with one holder, in as few runs of neighbours as a quick search finds.

        First those right after the page `behind`, the sequence's last one; then a free run that is long enough, with
        room to grow; then ever shorter ones.
        """
        assert count <= self.num_free, "the caller evicts first"
        pages: list[int] = []
        if behind != NO_PAGE:
            self._take(behind + 1, count, pages)
        if len(pages) < count:
            self._take(self._roomy_start(count - len(pages)), count - len(pages), pages)
        length, cursor = count, 0
        while len(pages) < count:
            length = min(length, count - len(pages))
            start = self._free.find(b"\1" * length, cursor)
            if start >= 0:
                self._take(start, length, pages)
                cursor = start + length
            else:  # no such run from here on; one of half the length may lie further back
                length, cursor = (length + 1) // 2, 0
        return pages

    def hold(self, page: int) -> int:
        """Count one more user of the page; return how many there are."""
        self.num_holders[page] += 1
        return self.num_holders[page]

    def release(self, page: int) -> int:
        """Count one user less; return how many are left."""
        assert self.num_holders[page] > 0, f"page {page} is given back twice"
        self.num_holders[page] -= 1
        return self.num_holders[page]

    def free(self, page: int) -> None:
        """Mark the page as free."""
        assert not self._free[page], f"page {page} is free already"
        assert self.num_holders[page] == 0, f"page {page} is in use"
        self._free[page] = 1
        self.num_free += 1

    def is_free(self, page: int) -> bool:
        """Return whether the page holds nothing."""
        return bool(self._free[page])

    def has_room(self, count: int, behind: int) -> bool:
        """Return whether `allocate` would continue right after the last page, or find one run with room to grow."""
        if behind != NO_PAGE and behind + 1 < self.num_pages and self._free[behind + 1]:
            return True
        return self._roomy_start(count) < self.num_pages

    def _roomy_start(self, count: int) -> int:
        """Return where a run of `count` fits with room to grow, without taking others' room; the pool's
        end if nowhere.
        """
        start = self._free.find(b"\1" * (count + GROWTH_ROOM))
        if start < 0:
            return self.num_pages
        return start + GROWTH_ROOM if start and self.num_holders[start - 1] else start

    def _take(self, start: int, count: int, pages: list[int]) -> None:
        """Take up to `count` pages from `start` on, as far as they are free."""
        end = min(start + count, self.num_pages)
        used = self._free.find(0, start, end)
        end = used if used >= 0 else max(start, end)
        self._free[start:end] = bytes(end - start)
        self.num_holders[start:end] = [1] * (end - start)
        self.num_free -= end - start
        pages.extend(range(start, end))


@dataclass(slots=True)
class PageTable:
    """The pages of a sequence, and how many of its tokens are committed.

    pages: the physical page of each logical one; NO_PAGE below `first_page`, for pages before the window. num_tokens:
    committed tokens. exact_end: tokens from here on have KV that a full prefill would not compute, and are never
    cached; None: there are none. tail: the node of the last whole page of exact tokens; None if a hash collision keeps
    what follows out of the cache. last_page_ids: the committed exact tokens after it, which fill no page. last_used:
    when the sequence was opened. uncounted: tokens looked up and found at open, until the first commit counts them: an
    admission that is undone before it ran counts nothing.
    """

    tail: ChainNode | None
    last_used: int
    pages: array[int] = field(default_factory=lambda: array("i"))
    first_page: int = 0
    num_tokens: int = 0
    exact_end: int | None = None
    last_page_ids: list[int] = field(default_factory=list)
    uncounted: tuple[int, int] | None = None

    @property
    def num_exact(self) -> int:
        """Committed tokens whose KV is what a full prefill computes."""
        return self.num_tokens if self.exact_end is None else min(self.num_tokens, self.exact_end)


def page_runs(table: Sequence[int], page_size: int, first_token: int, end_token: int) -> list[tuple[int, int]]:
    """Return half-open ranges [start, end) of pool slots that hold the tokens [first_token, end_token), in order.

    Slot `page * page_size + i` is token slot i of a page. With page_size 4, the tokens [2, 11) of table [7, 8, 3] lie
    in slots [30, 36) and [12, 15). The range must not touch pages that have been freed.
    """
    if first_token >= end_token:
        return []
    first, last = first_token // page_size, (end_token - 1) // page_size
    pages = table[first : last + 1]
    assert min(pages) >= 0, "the range reaches into pages that have been given back"
    runs: list[tuple[int, int]] = []
    start = pages[0]
    for before, page in pairwise(pages):
        if page != before + 1:
            runs.append((start * page_size, (before + 1) * page_size))
            start = page
    runs.append((start * page_size, (pages[-1] + 1) * page_size))
    runs[0] = (runs[0][0] + first_token % page_size, runs[0][1])
    runs[-1] = (runs[-1][0], pages[-1] * page_size + (end_token - 1) % page_size + 1)
    return runs


ROLLING_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counts of the pool at one moment.

    num_queries and num_hits: tokens that sequences were opened with, and those of them that were cached. A sequence
    counts once, with its first commit, and again if it is opened again. rolling_hit_rate: the same over the last
    `ROLLING_REQUESTS`. num_evicted: pages that the cache lost because memory was needed. num_in_use, num_cached,
    num_free: pages that sequences hold, that are only cached, and that are empty; they add up to num_pages.
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
        """The share of all tokens looked up that was cached."""
        return self.num_hits / self.num_queries if self.num_queries else 0.0


class HitCounter:
    """Tokens looked up and found, in total and over the last `ROLLING_REQUESTS` requests."""

    def __init__(self) -> None:
        self.num_queries = 0
        self.num_hits = 0
        self._recent: deque[tuple[int, int]] = deque(maxlen=ROLLING_REQUESTS)

    def count(self, num_queries: int, num_hits: int) -> None:
        """Count one request that looked up so many tokens and found so many."""
        self.num_queries += num_queries
        self.num_hits += num_hits
        self._recent.append((num_queries, num_hits))

    @property
    def recent_hit_rate(self) -> float:
        """The share of the last requests' tokens that was cached."""
        num_queries = sum(queries for queries, _ in self._recent)
        return sum(hits for _, hits in self._recent) / num_queries if num_queries else 0.0
