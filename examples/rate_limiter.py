"""A token-bucket rate limiter for calls to a remote service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class RateLimitError(Exception):
    """No token was free, and the caller did not want to wait."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"rate limit reached, retry in {retry_after:.2f} s")
        self.retry_after = retry_after


class TokenBucket:
    """Allows `rate` calls a second on average, and bursts of up to `capacity`."""

    def __init__(self, rate: float, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.capacity = capacity
        self._clock = clock
        self._tokens = float(capacity)
        self._updated = clock()
        self._lock = threading.Lock()

    def _refill(self) -> None:
        now = self._clock()
        elapsed = now - self._updated
        self._tokens = min(self.capacity, self._tokens + elapsed * self.rate)
        self._updated = now

    def try_acquire(self, count: int = 1) -> bool:
        """Take `count` tokens if they are free."""
        with self._lock:
            self._refill()
            if self._tokens < count:
                return False
            self._tokens -= count
            return True

    def acquire(self, count: int = 1) -> None:
        """Take `count` tokens, or raise RateLimitError."""
        if not self.try_acquire(count):
            missing = count - self._tokens
            raise RateLimitError(missing / self.rate)

    def wait(self, count: int = 1) -> None:
        """Take `count` tokens, sleeping until they are free."""
        while not self.try_acquire(count):
            time.sleep((count - self._tokens) / self.rate)


def limited(bucket: TokenBucket) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Decorate a function so that every call waits for a token first."""

    def decorate(function: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **kwargs: object) -> object:
            bucket.wait()
            return function(*args, **kwargs)

        return wrapper

    return decorate
