"""A token bucket that can also be charged afterwards, for what nobody knows beforehand."""

from __future__ import annotations

from collections.abc import Callable


class TokenBucket:
    """Holds at most a minute's worth, `per_minute`, and is refilled evenly.

    Libraries for rates take a unit a request; here an answer's tokens are known when it is done, so the bucket may go
    below zero, and refuses until it is paid off. Not thread-safe.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        assert per_minute > 0
        self._capacity = per_minute
        self._per_second = per_minute / 60.0
        self._clock = clock
        self._level = per_minute
        self._at = clock()

    def wait_s(self, amount: float = 0.0) -> float:
        """Seconds until it holds `amount` (0.0: now), or, of more than fits, until it is full."""
        self._refill()
        missing = min(amount, self._capacity) - self._level
        return max(0.0, missing / self._per_second)

    def charge(self, amount: float) -> None:
        """Take this much, whether it is there or not."""
        self._refill()
        self._level -= amount

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_second)
        self._at = now
