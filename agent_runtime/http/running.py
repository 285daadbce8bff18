"""Runs work in a thread while other requests are answered, and ends it when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio.to_thread import run_sync
from fastapi import Request

from agent_runtime.http.leaving import Departure
from agent_runtime.http.service import Service
from agent_runtime.merger import Watcher

Result = TypeVar("Result")


async def run(service: Service, request: Request, work: Callable[[Watcher], Result]) -> Result:
    """Do the work in a thread; stop it when the client hangs up."""
    departure = Departure()
    watching = asyncio.create_task(departure.wait_for(request))
    try:
        return await run_sync(work, departure, limiter=service.threads)
    finally:  # also when the server shuts down
        watching.cancel()
        departure.happen()
