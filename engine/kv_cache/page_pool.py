"""The pool of pages: who holds how many, which are free, and which of the free ones to take."""

from __future__ import annotations

from engine.paging.page import NO_PAGE

GROWTH_ROOM = 8
"""Pages left free behind a page in use where it can be had, so that its sequence grows on in one run."""


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
        """`count` free pages, each with one holder, in as few runs of neighbours as a quick look finds.

        First those right behind the page `behind`, the sequence's last one; then a free run that is long enough, with
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
        """One more uses the page; returns how many do."""
        self.num_holders[page] += 1
        return self.num_holders[page]

    def release(self, page: int) -> int:
        """One less uses the page; returns how many are left."""
        assert self.num_holders[page] > 0, f"page {page} is given back twice"
        self.num_holders[page] -= 1
        return self.num_holders[page]

    def free(self, page: int) -> None:
        """Nobody needs what the page holds."""
        assert not self._free[page], f"page {page} is free already"
        assert self.num_holders[page] == 0, f"page {page} is in use"
        self._free[page] = 1
        self.num_free += 1

    def is_free(self, page: int) -> bool:
        """Whether the page holds nothing."""
        return bool(self._free[page])

    def has_room(self, count: int, behind: int) -> bool:
        """Whether `allocate` would go on right behind the last page, or find one run with room to grow."""
        if behind != NO_PAGE and behind + 1 < self.num_pages and self._free[behind + 1]:
            return True
        return self._roomy_start(count) < self.num_pages

    def _roomy_start(self, count: int) -> int:
        """Where a run of `count` fits that takes nobody's room to grow and has its own; the pool's end if nowhere."""
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
