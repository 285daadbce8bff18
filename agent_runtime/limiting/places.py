"""Places for work on the processor: Python runs one thread at a time, and many that want to only delay one another."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

NUM_PLACES = 2
"""The second is for small edits while a large one has the first.

Measured with edits of 100-line files by rule on two cores, the client on one of them, in requests a second and
milliseconds of the slowest hundredth. 4 clients: 853/s and 147 ms without places, 928/s and 6 ms with one, 801/s and
8 ms with two. 200 clients: 553/s and 1456 ms, 692/s and 418 ms, 647/s and 514 ms.
"""


class Places:
    """As many at once as there are places; who waits is let in by round (`Turns`), within a round by arrival.

    Used on one event loop.
    """

    def __init__(self, num_places: int = NUM_PLACES) -> None:
        self._num_free = num_places
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    @asynccontextmanager
    async def place(self, number: int) -> AsyncIterator[Callable[[], None]]:
        """A place within the block, or until what this gives is called, from any thread.

        Whoever goes on without one, because it waits for the model, gives it back so.
        """
        await self._take(number)
        loop, is_given_back = asyncio.get_running_loop(), False

        def give_back() -> None:
            nonlocal is_given_back
            if not is_given_back:
                is_given_back = True
                self._free()

        try:
            yield lambda: _soon(loop, give_back)
        finally:
            give_back()

    async def _take(self, number: int) -> None:
        if self._num_free:
            self._num_free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (number, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was let in at the moment in which it left
                self._free()
            raise

    def _free(self) -> None:
        """Let in the next one that still waits."""
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
