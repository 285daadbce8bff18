"""Shares of something of which there is a fixed sum, such as memory for the bodies of requests."""

from __future__ import annotations

from collections import Counter


class Shares:
    """Lets nobody take more than it leaves to all others, so that there is always something left for the next.

    One alone may have a half, two a third each (dynamic thresholds; Choudhury & Hahne 1998). Used on one event loop.
    """

    def __init__(self, total: int) -> None:
        self._left = total
        self._taken: Counter[str] = Counter()

    def take(self, holder: str, amount: int) -> bool:
        """Whether the holder may have so much more; if so, it has."""
        if self._taken[holder] + amount > self._left - amount:
            return False
        self._taken[holder] += amount
        self._left -= amount
        return True

    def give_back(self, holder: str, amount: int) -> None:
        """The holder does with so much less."""
        self._left += amount
        self._taken[holder] -= amount
        if not self._taken[holder]:
            del self._taken[holder]
