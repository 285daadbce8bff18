"""Quotas: rate limits of tenants, shares of a common resource, fair queueing at the model, and CPU slots."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count

from agent_runtime.errors import TooManyRequests
from agent_runtime.telemetry.metrics import Observer, RequestOutcome


class TokenBucket:
    """A token bucket with the capacity of one minute, `per_minute`, refilled evenly. Not thread-safe.

    The tokens of an answer are known only when it is complete, so the level may fall below zero; requests are refused
    until it is above zero again.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        assert per_minute > 0
        self._capacity = per_minute
        self._per_second = per_minute / 60.0
        self._clock = clock
        self._level = per_minute
        self._at = clock()

    def compute_wait(self, amount: float = 0.0) -> float:
        """Return the seconds until it holds `amount`, or until it is full if `amount` is more than that."""
        self._refill()
        missing = min(amount, self._capacity) - self._level
        return max(0.0, missing / self._per_second)

    def charge(self, amount: float) -> None:
        """Take an amount, even if the bucket holds less."""
        self._refill()
        self._level -= amount

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._per_second)
        self._at = now


MAX_IN_WORK = 1024
"""Maximum running requests of all tenants, including those that wait for the model."""

REQUEST_LIMIT = "requests_per_minute"

RETRY_SECONDS = 1.0
"""Retry-After where another request has to end first."""


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Limits of each tenant; None: no limit.

    The requests of a minute may all come at once. Tokens are those that the model computes for the tenant: recomputed
    prompt tokens and written tokens; cached ones are free.
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
    """Applies the limits to all tenants of a service, which are few: each has a token."""

    limits: TenantLimits = field(default_factory=TenantLimits)
    max_in_work: int = MAX_IN_WORK
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _by_name: dict[str, _Tenant] = field(default_factory=dict)
    _num_in_work: int = 0

    @contextmanager
    def admit(self, name: str) -> Iterator[None]:
        """Count a request that runs during the block; raises TooManyRequests if a limit is reached."""
        with self._lock:
            tenant = self._get_tenant(name)
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

    def charge_requests(self, name: str, num_requests: int) -> None:
        """Charge the requests of an admitted batch; raises TooManyRequests, and charges none, above the rate.

        A batch above the limit of a minute is admitted if the bucket is full; later requests then wait longer.
        """
        with self._lock:
            requests = self._get_tenant(name).requests
            if requests is None:
                return
            requests.charge(-1)  # its admission charged one
            if wait_s := requests.compute_wait(num_requests):
                raise TooManyRequests(
                    f"{name!r} may send {self.limits.requests_per_minute:g} requests a minute, of which the batch's "
                    f"{num_requests} are more than there are left; it may come in {wait_s:.1f} s",
                    limit=REQUEST_LIMIT,
                    retry_after_s=wait_s,
                )
            requests.charge(num_requests)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Charge the tokens that the model computed."""
        num_tokens = outcome.usage.recomputed + outcome.usage.completion
        if self.limits.tokens_per_minute is None or not num_tokens:
            return
        with self._lock:
            tokens = self._get_tenant(outcome.tenant).tokens
            assert tokens is not None
            tokens.charge(num_tokens)

    def _check(self, name: str, tenant: _Tenant) -> None:
        if self._num_in_work >= self.max_in_work:
            raise TooManyRequests(
                f"{self._num_in_work} requests are in work, which is all that the service takes; try again",
                limit="service",
                retry_after_s=RETRY_SECONDS,
            )
        most = self.limits.concurrent_requests
        if most is not None and tenant.num_in_work >= most:
            raise TooManyRequests(
                f"{name!r} has {most} requests in work, as many as it may; wait for one of them",
                limit="concurrent_requests",
                retry_after_s=RETRY_SECONDS,
            )
        if tenant.requests is not None and (wait_s := tenant.requests.compute_wait(1)):
            raise TooManyRequests(
                f"{name!r} has sent its {self.limits.requests_per_minute:g} requests a minute; "
                f"the next may come in {wait_s:.1f} s",
                limit=REQUEST_LIMIT,
                retry_after_s=wait_s,
            )
        if tenant.tokens is not None and (wait_s := tenant.tokens.compute_wait()):
            raise TooManyRequests(
                f"{name!r} has used its {self.limits.tokens_per_minute:g} tokens a minute; "
                f"the next request may come in {wait_s:.1f} s",
                limit="tokens_per_minute",
                retry_after_s=wait_s,
            )

    def _get_tenant(self, name: str) -> _Tenant:
        found = self._by_name.get(name)
        if found is None:
            requests, tokens = self.limits.requests_per_minute, self.limits.tokens_per_minute
            found = self._by_name[name] = _Tenant(
                None if requests is None else TokenBucket(requests, self.clock),
                None if tokens is None else TokenBucket(tokens, self.clock),
            )
        return found


class Shares:
    """Shares of a total, such as bytes: a holder may have at most as much as is left free for all others.

    One holder alone can have a half, two a third each (dynamic thresholds; Choudhury & Hahne 1998). Used on one event
    loop.
    """

    def __init__(self, total: int) -> None:
        self._left = total
        self._taken: Counter[str] = Counter()

    def take(self, holder: str, amount: int) -> bool:
        """Give a holder an amount, and return True, if its share allows it; else return False."""
        if self._taken[holder] + amount > self._left - amount:
            return False
        self._taken[holder] += amount
        self._left -= amount
        return True

    def give_back(self, holder: str, amount: int) -> None:
        """Take an amount back from a holder."""
        self._left += amount
        self._taken[holder] -= amount
        if not self._taken[holder]:
            del self._taken[holder]


class FairQueue:
    """Numbers the requests of each flow; the engine admits smaller numbers first (`GenerationRequest.priority`).

    The requests of a flow have consecutive numbers. A flow with no request in work starts at the number that is being
    served. So while one flow has 100 requests waiting, with numbers 1 to 100, the first of another has number 1 too and
    waits for at most one of them, and requests of one flow keep their order (start-time fair queueing, Goyal et al.
    1996, with the same cost for each request).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served = 0
        self._last: dict[str, int] = {}
        self._num_in_work: dict[str, int] = {}

    @contextmanager
    def ticket(self, flow: str) -> Iterator[int]:
        """Yield the number of a request that is in work during the block."""
        with self._lock:
            number = max(self._served, self._last.get(flow, 0)) + 1
            self._last[flow] = number
            self._num_in_work[flow] = self._num_in_work.get(flow, 0) + 1
        try:
            yield number
        finally:
            with self._lock:
                self._served = max(self._served, number)
                self._num_in_work[flow] -= 1
                if not self._num_in_work[flow]:  # an idle flow is forgotten and starts again at the number served
                    del self._num_in_work[flow], self._last[flow]


NUM_SLOTS = 3
MAX_OF_FLOW = 2
"""One flow has at most two: the second is for its small edits while a large one has the first, the third for others.

Measured with edits of 100-line files by rule on two cores, the client on one of them, in requests a second and
milliseconds of the slowest hundredth. 4 clients: 853/s and 147 ms without slots, 928/s and 6 ms with one, 801/s and
8 ms with two. 200 clients: 553/s and 1456 ms, 692/s and 418 ms, 647/s and 514 ms.
"""


class CpuSlots:
    """Limits how many requests work by rules at once, in total and for one flow.

    Waiting requests are admitted by the time for which their flow has held slots, the least first, and within a flow by
    arrival: flows have equal shares of the processor, whether they send much at once or little often. A flow that
    starts is counted as having had as much as the one admitted last, so nobody saves up time. All is forgotten when no
    slot is held. Used on one event loop.
    """

    def __init__(
        self,
        num_slots: int = NUM_SLOTS,
        max_of_flow: int = MAX_OF_FLOW,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_free = num_slots
        self._max_of_flow = max_of_flow
        self._clock = clock
        self._arrivals = count()
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._num_held: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        """Seconds of each flow; for slots that are held, minus the time at which they were acquired."""
        self._last_used = 0.0

    @asynccontextmanager
    async def acquire(self, flow: str) -> AsyncIterator[Callable[[], None]]:
        """Hold a slot during the block, or until the yielded function is called, from any thread.

        Work that goes on without a slot, because it waits for the model, releases it so.
        """
        await self._wait_for_slot(flow)
        loop, is_released = asyncio.get_running_loop(), False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._release(flow)

        def release_from_thread() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(release)

        try:
            yield release_from_thread
        finally:
            release()

    async def _wait_for_slot(self, flow: str) -> None:
        if not self._num_held[flow] and flow not in self._waiting:
            self._used[flow] = max(self._used.get(flow, 0.0), self._last_used)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(flow, deque()).append((next(self._arrivals), turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was admitted at the moment in which it was cancelled
                self._release(flow)
            raise

    def _admit(self) -> None:
        """Give the free slots to requests that wait and may have one."""
        while self._num_free:
            flow = self._find_next_flow()
            if flow is None:
                return
            turns = self._waiting[flow]
            turn = turns.popleft()[1]
            if not turns:
                del self._waiting[flow]
            if turn.cancelled():
                continue
            self._num_free -= 1
            self._last_used = max(self._last_used, self._get_seconds(flow))
            self._num_held[flow] += 1
            self._used[flow] -= self._clock()
            turn.set_result(None)

    def _find_next_flow(self) -> str | None:
        """Return the flow to be admitted next, None if all that wait have as many slots as they may."""
        allowed = [flow for flow in self._waiting if self._num_held[flow] < self._max_of_flow]
        return min(allowed, key=lambda flow: (self._get_seconds(flow), self._waiting[flow][0][0]), default=None)

    def _get_seconds(self, flow: str) -> float:
        """Return how long it has held slots so far; two at once count twice."""
        return self._used[flow] + self._num_held[flow] * self._clock()

    def _release(self, flow: str) -> None:
        """Take a slot back, and admit the next request."""
        self._used[flow] += self._clock()
        self._num_held[flow] -= 1
        self._num_free += 1
        self._admit()
        if not any(self._num_held.values()):  # nobody waits either
            for each in (self._used, self._num_held):
                each.clear()
            self._last_used = 0.0
