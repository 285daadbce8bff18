"""Runs work in a thread while other requests are answered, and ends it when its client leaves or it takes too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio.to_thread import run_sync
from fastapi import Request

from agent_runtime.apply.time_limit import rule_time
from agent_runtime.errors import HunkError
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.draining import Drain
from agent_runtime.http.leaving import Departure
from agent_runtime.http.service import Service
from agent_runtime.limiting.places import Placed
from agent_runtime.telemetry.current_request import current_holder

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
