"""Runs work in a thread, and cancels it when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from anyio.to_thread import run_sync
from fastapi import Request

from agent_runtime.apply.rule_process import rule_time
from agent_runtime.errors import HunkError
from agent_runtime.progress import Watcher
from agent_runtime.quotas.queue import Placed
from agent_runtime.request_context import current_holder
from agent_runtime.server.admission import Drain
from agent_runtime.server.dependencies import Service


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


Result = TypeVar("Result")


async def run(service: Service, request: Request, work: Callable[[Watcher], Result]) -> Result:
    """Do the work in a thread; stop it when the client hangs up."""
    departure = Departure()
    watching = asyncio.create_task(departure.wait_for(request))
    try:
        return await run_watched(service, work, departure)
    finally:  # also when the server shuts down
        watching.cancel()
        departure.happen()


async def run_watched(service: Service, work: Callable[[Watcher], Result], watcher: Watcher) -> Result:
    """Do the work in a thread, which has a place on the processor until it waits for the model."""
    async with service.places.place(current_holder()) as give_back:
        served = _Served(watcher, give_back, service.drain)
        return await run_sync(_limited, service, work, served, limiter=service.threads)


async def run_by_rule(service: Service, work: Callable[[], Result]) -> Result:
    """Do work that asks no model in a thread, which has a place on the processor to its end."""
    return await run_watched(service, lambda _: work(), Watcher())


def _limited(service: Service, work: Callable[[Watcher], Result], watcher: Watcher) -> Result:
    with rule_time(watcher, service.rule_seconds):
        return work(watcher)


class _Served(Placed):
    """Is left, too, when a drain is over."""

    def __init__(self, watcher: Watcher, give_back: Callable[[], None], drain: Drain) -> None:
        super().__init__(watcher, give_back)
        self._drain = drain

    @property
    def is_left(self) -> bool:
        """Whether nobody waits for the answer, or it has to end all the same."""
        return self._drain.is_over or super().is_left

    @property
    def ends_with(self) -> HunkError:
        """That the service ends, where it does."""
        return self._drain.fault if self._drain.is_over else super().ends_with
