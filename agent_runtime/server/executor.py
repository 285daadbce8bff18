"""Runs work in threads that hold a CPU slot, and cancels it when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from anyio.to_thread import run_sync
from fastapi import Request

from agent_runtime.apply.rule_process import limit_rule_time
from agent_runtime.request_context import RequestContext
from agent_runtime.server.dependencies import Service

Result = TypeVar("Result")


async def run_in_thread(service: Service, context: RequestContext, work: Callable[[RequestContext], Result]) -> Result:
    """Run work in a thread, which holds a CPU slot to its end or until it calls `context.release_slot`."""

    def run(context: RequestContext) -> Result:
        with limit_rule_time(context.cancel, service.rule_seconds):
            return work(context)

    async with service.cpu_slots.acquire(context.flow) as release:
        return await run_sync(run, replace(context, release_slot=release), limiter=service.threads)


@asynccontextmanager
async def cancel_on_disconnect(request: Request, context: RequestContext) -> AsyncIterator[None]:
    """Cancel the work for a request when its client disconnects, and at the end of the block."""
    waiting = asyncio.create_task(cancel_after_disconnect(request, context))
    try:
        yield
    finally:  # also when the server shuts down
        waiting.cancel()
        context.cancel.cancel()


async def cancel_after_disconnect(request: Request, context: RequestContext) -> None:
    """Cancel the work for a request when its client disconnects."""
    await wait_for_disconnect(request)
    context.cancel.cancel()


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client of a request, whose body has been read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
