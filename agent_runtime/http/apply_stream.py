"""`POST /apply` with `stream`: phases and tokens as they happen, and at the end the result, as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic_core import to_json

from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.answer import Answer, answer_of_fault
from agent_runtime.http.events import Events
from agent_runtime.http.leaving import Departure
from agent_runtime.http.problems import fault_of_bug
from agent_runtime.http.streaming import Streamed

HEARTBEAT_SECONDS = 15.0
"""How long nothing is sent before a comment is: proxies close connections on which nothing moves."""

LOG = logging.getLogger("hunk.http")


async def streamed(request: Request, work: Callable[[Watcher], Awaitable[Answer]]) -> Response:
    """The answer as a stream, or an ordinary one where the request fails before the model takes it on."""
    departure = Departure()
    events = Events(departure)
    leaving = asyncio.create_task(departure.wait_for(request))
    asked = asyncio.create_task(events.asked.wait())
    task = asyncio.create_task(_to_end(work, events))
    try:
        await asyncio.wait({task, asked}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:  # the server shuts down
        departure.happen()
        raise
    finally:
        leaving.cancel()
        asked.cancel()
    if task.done() and (task.exception() is not None or task.result().is_problem):
        return task.result().response()  # what it raised is raised here
    headers = task.result().headers if task.done() else {}
    return Streamed(_parts(events, task), departure.happen, "text/event-stream", headers)


async def _to_end(work: Callable[[Watcher], Awaitable[Answer]], events: Events) -> Answer:
    try:
        return await work(events)
    finally:
        events.wake()


async def _parts(events: Events, task: asyncio.Task[Answer]) -> AsyncIterator[bytes]:
    """The events as bytes, a comment where there is none for long, and at last what the work came to."""
    while True:
        is_over = task.done()
        for event in events.take():
            yield _event(event.name, to_json(event.data()))
        if is_over:
            answer = _result(task)
            yield _event("problem" if answer.is_problem else "result", answer.content)
            return
        if not await events.wait(HEARTBEAT_SECONDS):
            yield KEEPALIVE_COMMENT


def _result(task: asyncio.Task[Answer]) -> Answer:
    """What the work came to; a bug is logged here, as the server does where no answer has begun."""
    try:
        return task.result()
    except Exception as error:
        LOG.error("a bug ended a stream", exc_info=error)
        return answer_of_fault(fault_of_bug(error))


def _event(name: str, data: bytes) -> bytes:
    return format_sse_event(event=name, data_str=data.decode())
