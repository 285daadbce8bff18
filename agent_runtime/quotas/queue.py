"""Fair queueing of requests at the model, and CPU slots."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count


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
            flow = self._next_flow()
            if flow is None:
                return
            turns = self._waiting[flow]
            turn = turns.popleft()[1]
            if not turns:
                del self._waiting[flow]
            if turn.cancelled():
                continue
            self._num_free -= 1
            self._last_used = max(self._last_used, self._seconds_of(flow))
            self._num_held[flow] += 1
            self._used[flow] -= self._clock()
            turn.set_result(None)

    def _next_flow(self) -> str | None:
        """Return the flow to be admitted next, None if all that wait have as many slots as they may."""
        allowed = [flow for flow in self._waiting if self._num_held[flow] < self._max_of_flow]
        return min(allowed, key=lambda flow: (self._seconds_of(flow), self._waiting[flow][0][0]), default=None)

    def _seconds_of(self, flow: str) -> float:
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
