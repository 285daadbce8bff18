"""Fair queueing of tenants at the model, and CPU slots."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

from agent_runtime.progress import Relay, Watcher


class Turns:
    """Gives each request its round; the engine admits smaller ones first (`GenerationRequest.priority`).

    A tenant's requests have one round after the other; with nothing in work it begins at the round that is being
    served. So while one has 100 requests waiting, rounds 1 to 100, another's first has round 1 too and waits for at
    most one of them, and within a tenant nobody overtakes (start-time fair queueing, Goyal et al. 1996, with all
    requests taken for equally long).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served = 0
        self._last: dict[str, int] = {}
        self._num_in_work: dict[str, int] = {}

    @contextmanager
    def turn(self, tenant: str) -> Iterator[int]:
        """The round of a request that is in work within the block."""
        with self._lock:
            number = max(self._served, self._last.get(tenant, 0)) + 1
            self._last[tenant] = number
            self._num_in_work[tenant] = self._num_in_work.get(tenant, 0) + 1
        try:
            yield number
        finally:
            with self._lock:
                self._served = max(self._served, number)
                self._num_in_work[tenant] -= 1
                if not self._num_in_work[tenant]:  # what is forgotten begins anew at the round that is served
                    del self._num_in_work[tenant], self._last[tenant]


NUM_PLACES = 3
MAX_OF_HOLDER = 2
"""One holder has at most two: the second is for its small edits while a large one has the first, the third for others.

Measured with edits of 100-line files by rule on two cores, the client on one of them, in requests a second and
milliseconds of the slowest hundredth. 4 clients: 853/s and 147 ms without places, 928/s and 6 ms with one, 801/s and
8 ms with two. 200 clients: 553/s and 1456 ms, 692/s and 418 ms, 647/s and 514 ms.
"""

BY_RULE = frozenset({"parse", "merge", "scope", "prompt", "verify"})
"""The phases that need a place. To ask the model alone waits for the end of its current pass."""


class Places:
    """As many at once as there are places, and fewer of one holder (a tenant, or an address where there are no tokens).

    Who waits is let in by the time that its holder has had a place, the least first, and within a holder by arrival:
    holders have equal shares of the processor, whether they ask for much at once or for little often. Who comes after
    a while begins with as much as the one that was let in last, so nobody saves time up, and all is forgotten when no
    work is left. Used on one event loop.
    """

    def __init__(
        self,
        num_places: int = NUM_PLACES,
        max_of_holder: int = MAX_OF_HOLDER,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_free = num_places
        self._max_of_holder = max_of_holder
        self._clock = clock
        self._arrivals = count()
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._num_held: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        """Seconds of each holder; of places that are held, minus the time at which they were taken."""
        self._last_used = 0.0

    @asynccontextmanager
    async def place(self, holder: str) -> AsyncIterator[Callable[[], None]]:
        """A place within the block, or until what this gives is called, from any thread.

        Whoever goes on without one, because it waits for the model, gives it back so.
        """
        await self._take(holder)
        loop, is_given_back = asyncio.get_running_loop(), False

        def give_back() -> None:
            nonlocal is_given_back
            if not is_given_back:
                is_given_back = True
                self._free(holder)

        try:
            yield lambda: _soon(loop, give_back)
        finally:
            give_back()

    async def _take(self, holder: str) -> None:
        if not self._num_held[holder] and holder not in self._waiting:
            self._used[holder] = max(self._used.get(holder, 0.0), self._last_used)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append((next(self._arrivals), turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was let in at the moment in which it left
                self._free(holder)
            raise

    def _let_in(self) -> None:
        """Give the places that are free to those who wait and may have one."""
        while self._num_free:
            holder = self._next()
            if holder is None:
                return
            turns = self._waiting[holder]
            turn = turns.popleft()[1]
            if not turns:
                del self._waiting[holder]
            if turn.cancelled():
                continue
            self._num_free -= 1
            self._last_used = max(self._last_used, self._time_of(holder))
            self._num_held[holder] += 1
            self._used[holder] -= self._clock()
            turn.set_result(None)

    def _next(self) -> str | None:
        """Whose turn it is; nobody's where all who wait have as many places as they may."""
        may = [holder for holder in self._waiting if self._num_held[holder] < self._max_of_holder]
        return min(may, key=lambda holder: (self._time_of(holder), self._waiting[holder][0][0]), default=None)

    def _time_of(self, holder: str) -> float:
        """How long it has had places so far, one beside another counted twice."""
        return self._used[holder] + self._num_held[holder] * self._clock()

    def _free(self, holder: str) -> None:
        """Take a place back, and let in the next one that still waits."""
        self._used[holder] += self._clock()
        self._num_held[holder] -= 1
        self._num_free += 1
        self._let_in()
        if not any(self._num_held.values()):  # nobody waits either
            for each in (self._used, self._num_held):
                each.clear()
            self._last_used = 0.0


class Placed(Relay):
    """Follows work that has a place, and gives that to the next before the model is asked."""

    def __init__(self, watcher: Watcher, give_back: Callable[[], None]) -> None:
        super().__init__(watcher)
        self._give_back = give_back

    def entered(self, phase: str, path: str = "") -> None:
        """Give it back behind the rules, and pass it on."""
        if phase not in BY_RULE:
            self._give_back()
        super().entered(phase, path)

    def began(self, stop: Callable[[], None]) -> None:
        """As above, for a model that names no phases."""
        self._give_back()
        super().began(stop)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
