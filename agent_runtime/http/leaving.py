"""Stops the work on an edit when nobody waits for the answer any more."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from starlette.requests import Request

from agent_runtime.generation.watcher import Watcher


class Departure(Watcher):
    """Happens at most once, when the client leaves, and stops what the model does then or would begin after.

    An apply of several files asks the model several times at once, and one after the other: all are stopped, which
    does nothing to those that have ended.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._happened = False
        self._stops: list[Callable[[], None]] = []

    @property
    def is_left(self) -> bool:
        """Whether it has happened."""
        return self._happened

    async def wait_for(self, request: Request) -> None:
        """Happen when the client of a request, whose body has been read, closes the connection."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.happen()

    def began(self, stop: Callable[[], None]) -> None:
        """Remember how to stop this, or do it if nobody waits for it."""
        with self._lock:
            self._stops.append(stop)
            left = self._happened
        if left:
            stop()

    def happen(self) -> None:
        """The client has left, or has its answer."""
        with self._lock:
            self._happened = True
            stops, self._stops = self._stops, []
        for stop in stops:
            stop()
