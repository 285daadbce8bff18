"""Rate limits of tenants: token buckets and shares of a common resource."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent_runtime.errors import TooManyRequests
from agent_runtime.telemetry.observer import Observer, RequestOutcome


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


MAX_IN_WORK = 1024
"""Requests of all tenants that are in work at once, waiting for the model included."""

OF_REQUESTS = "requests_per_minute"

AGAIN_S = 1.0
"""When to try again where only the end of other requests makes room."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Of each tenant; None: no limit of its own.

    A minute's worth may come at once. Tokens are those that the model ran for it: of the prompts what was recomputed,
    and what it wrote; what was cached is free.
    """

    requests_per_minute: float | None = None
    concurrent_requests: int | None = None
    tokens_per_minute: float | None = None


@dataclass(slots=True)
class _Tenant:
    requests: TokenBucket | None
    tokens: TokenBucket | None
    num_in_work: int = 0


@dataclass(slots=True)
class TenantRateLimiter(Observer):
    """All tenants of a service; those who come only with a token that it knows, so there are not many."""

    limits: TenantLimits = field(default_factory=TenantLimits)
    max_in_work: int = MAX_IN_WORK
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _by_name: dict[str, _Tenant] = field(default_factory=dict)
    _num_in_work: int = 0

    @contextmanager
    def admit(self, name: str) -> Iterator[None]:
        """A request that is in work within the block; raises TooManyRequests instead."""
        with self._lock:
            tenant = self._tenant(name)
            self._check(name, tenant)
            if tenant.requests is not None:
                tenant.requests.charge(1)
            tenant.num_in_work += 1
            self._num_in_work += 1
        try:
            yield
        finally:
            with self._lock:
                tenant.num_in_work -= 1
                self._num_in_work -= 1

    def count_as(self, name: str, num_requests: int) -> None:
        """A request that was admitted holds so many, each of which counts; raises TooManyRequests, and charges none.

        More than a minute's worth are let in where there is a whole minute's, and what comes next waits longer.
        """
        with self._lock:
            requests = self._tenant(name).requests
            if requests is None:
                return
            requests.charge(-1)  # as what it was admitted
            if wait_s := requests.wait_s(num_requests):
                raise TooManyRequests(
                    f"{name!r} may send {self.limits.requests_per_minute:g} requests a minute, of which the batch's "
                    f"{num_requests} are more than there are left; it may come in {wait_s:.1f} s",
                    limit=OF_REQUESTS,
                    retry_after_s=wait_s,
                )
            requests.charge(num_requests)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Charge the tokens that the model ran."""
        num_tokens = outcome.usage.recomputed + outcome.usage.completion
        if self.limits.tokens_per_minute is None or not num_tokens:
            return
        with self._lock:
            tokens = self._tenant(outcome.tenant).tokens
            assert tokens is not None
            tokens.charge(num_tokens)

    def _check(self, name: str, tenant: _Tenant) -> None:
        if self._num_in_work >= self.max_in_work:
            raise TooManyRequests(
                f"{self._num_in_work} requests are in work, which is all that the service takes; try again",
                limit="service",
                retry_after_s=AGAIN_S,
            )
        most = self.limits.concurrent_requests
        if most is not None and tenant.num_in_work >= most:
            raise TooManyRequests(
                f"{name!r} has {most} requests in work, as many as it may; wait for one of them",
                limit="concurrent_requests",
                retry_after_s=AGAIN_S,
            )
        if tenant.requests is not None and (wait_s := tenant.requests.wait_s(1)):
            raise TooManyRequests(
                f"{name!r} has sent its {self.limits.requests_per_minute:g} requests a minute; "
                f"the next may come in {wait_s:.1f} s",
                limit=OF_REQUESTS,
                retry_after_s=wait_s,
            )
        if tenant.tokens is not None and (wait_s := tenant.tokens.wait_s()):
            raise TooManyRequests(
                f"{name!r} has used its {self.limits.tokens_per_minute:g} tokens a minute; "
                f"the next request may come in {wait_s:.1f} s",
                limit="tokens_per_minute",
                retry_after_s=wait_s,
            )

    def _tenant(self, name: str) -> _Tenant:
        found = self._by_name.get(name)
        if found is None:
            requests, tokens = self.limits.requests_per_minute, self.limits.tokens_per_minute
            found = self._by_name[name] = _Tenant(
                None if requests is None else TokenBucket(requests, self.clock),
                None if tokens is None else TokenBucket(tokens, self.clock),
            )
        return found


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
