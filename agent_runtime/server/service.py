"""The parts of a service, and how it answers a request.

The work of a request runs in a thread. A disconnect cancels it. Its progress can be streamed as server-sent events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from opentelemetry.trace import TracerProvider
from pydantic_core import to_json

from agent_runtime.apply.pipeline import Applier
from agent_runtime.apply.rule_process import RULE_SECONDS, limit_rule_time
from agent_runtime.llm.interface import ModelSlot
from agent_runtime.quotas import CpuSlots, FairQueue, TenantRateLimiter
from agent_runtime.request_context import NO_PROGRESS, Piece, ProgressListener, RequestContext
from agent_runtime.server.middleware import Drain
from agent_runtime.server.problems import make_bug_fault
from agent_runtime.server.responses import EncodedAnswer, IdempotencyStore, StreamedResponse, encode_problem
from agent_runtime.session import SessionRegistry
from agent_runtime.telemetry.metrics import Metering
from agent_runtime.workspace.registry import WorkspaceRegistry

MAX_APPLIES = 1024
"""Maximum threads, one for each running request; the model's queue is shorter, and answers 429 if it is full."""


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of one service.

    threads: limits the threads in which requests run. tenants, queue, cpu_slots: quotas. drain: the state of the
    shutdown. traces: receives spans. rule_seconds: how long rules may work on one edit.
    """

    applier: Applier
    model: ModelSlot
    workspaces: WorkspaceRegistry = field(default_factory=WorkspaceRegistry)
    threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(MAX_APPLIES))
    idempotency: IdempotencyStore = field(default_factory=IdempotencyStore)
    sessions: SessionRegistry = field(default_factory=SessionRegistry)
    metering: Metering = field(default_factory=Metering)
    tenants: TenantRateLimiter = field(default_factory=TenantRateLimiter)
    queue: FairQueue = field(default_factory=FairQueue)
    cpu_slots: CpuSlots = field(default_factory=CpuSlots)
    drain: Drain = field(default_factory=Drain)
    traces: TracerProvider | None = None
    rule_seconds: float = RULE_SECONDS


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


MAX_PIECES = 256
"""Maximum pieces of one event; further neighbours of the same origin are joined."""


@dataclass(slots=True)
class _PhaseEvent:
    """The event `phase`."""

    phase: str
    path: str

    name = "phase"

    def data(self) -> dict[str, Any]:
        return {"phase": self.phase, **_make_path_field(self.path)}


@dataclass(slots=True)
class _TokensEvent:
    """The event `tokens`: the text of one region since the last such event."""

    region: int
    path: str
    pieces: list[Piece] = field(default_factory=list)

    name = "tokens"

    def add(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            last = self.pieces[-1] if self.pieces else None
            if last is not None and len(self.pieces) >= MAX_PIECES and last.origin == piece.origin:
                self.pieces[-1] = Piece(last.text + piece.text, piece.origin)
            else:
                self.pieces.append(piece)

    def data(self) -> dict[str, Any]:
        pieces = [{"text": piece.text, "origin": piece.origin} for piece in self.pieces]
        return {"region": self.region, "pieces": pieces, **_make_path_field(self.path)}


def _make_path_field(path: str) -> dict[str, str]:
    """Return the field `path`, none where one file is worked on."""
    return {"path": path} if path else {}


class EventQueue(ProgressListener):
    """Queues the events of a request. Working threads add them; the event loop that creates the queue takes them.

    For a slow client it takes no more memory than the answer: there are few phases, and the tokens of a region are one
    event until it is taken.
    """

    wants_text = True

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._waiting: list[_PhaseEvent | _TokensEvent] = []
        self._by_region: dict[tuple[str, int], _TokensEvent] = {}
        self._more = asyncio.Event()
        self.started = asyncio.Event()
        """Set once the engine has accepted the request: from now on it is not refused, and may take long."""

    def on_phase(self, phase: str, path: str = "") -> None:
        with self._lock:
            self._waiting.append(_PhaseEvent(phase, path))
            for region in [region for region in self._by_region if region[0] == path]:
                del self._by_region[region]  # later tokens of this file come after the phase
        self.wake()

    def on_start(self) -> None:
        """Record that the engine has accepted the request."""
        if not self.started.is_set():
            self._call(self.started.set)

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Add the pieces to the event of this region, if it still waits; else add an event."""
        with self._lock:
            tokens = self._by_region.get((path, region))
            if tokens is None:
                tokens = self._by_region[path, region] = _TokensEvent(region, path)
                self._waiting.append(tokens)
            tokens.add(pieces)
        self.wake()

    def wake(self) -> None:
        """Wake the reader. Called from any thread."""
        if not self._more.is_set():
            self._call(self._more.set)

    def take(self) -> list[_PhaseEvent | _TokensEvent]:
        """Return the events since the last call, in order."""
        self._more.clear()
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._by_region.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Wait for an event for so many seconds; return whether there is one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)
        return self._more.is_set()

    def _call(self, function: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(function)


HEARTBEAT_SECONDS = 15.0
"""Seconds without an event after which a comment is sent: proxies close idle connections."""

LOG = logging.getLogger("hunk.http")


Work = Callable[[RequestContext, ProgressListener], EncodedAnswer]
"""Answers a request; runs in a thread."""


async def answer_request(
    service: Service,
    request: Request,
    context: RequestContext,
    key: str | None,
    sent: bytes,
    work: Work,
    *,
    stream: bool,
) -> Response:
    """Answer a request, once for each idempotency key: as a stream of events, or when the work is done."""

    async def run_once(progress: ProgressListener) -> EncodedAnswer:
        def run() -> Awaitable[EncodedAnswer]:
            return run_in_thread(service, context, lambda context: work(context, progress))

        return await service.idempotency.run_once(context.tenant, key, sent, run)

    if stream:
        return await stream_events(request, context, run_once)
    async with cancel_on_disconnect(request, context):
        answer = await run_once(NO_PROGRESS)
    return answer.to_response()


async def stream_events(
    request: Request, context: RequestContext, work: Callable[[ProgressListener], Awaitable[EncodedAnswer]]
) -> Response:
    """Return the answer as a stream of events, or as an ordinary one if the request fails before the model starts."""
    events = EventQueue()
    leaving = asyncio.create_task(cancel_after_disconnect(request, context))
    started = asyncio.create_task(events.started.wait())
    task = asyncio.create_task(_run(work, events))
    try:
        await asyncio.wait({task, started}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:  # the server shuts down
        context.cancel.cancel()
        raise
    finally:
        leaving.cancel()
        started.cancel()
    if task.done() and (task.exception() is not None or task.result().is_problem):
        return task.result().to_response()  # raises what the task has raised
    headers = task.result().headers if task.done() else {}
    return StreamedResponse(_encode_events(events, task), context.cancel.cancel, "text/event-stream", headers)


async def _run(work: Callable[[ProgressListener], Awaitable[EncodedAnswer]], events: EventQueue) -> EncodedAnswer:
    try:
        return await work(events)
    finally:
        events.wake()


async def _encode_events(events: EventQueue, task: asyncio.Task[EncodedAnswer]) -> AsyncIterator[bytes]:
    """Yield the events as bytes, a comment after a long silence, and at the end the result or the problem."""
    while True:
        is_over = task.done()
        for event in events.take():
            yield _encode_event(event.name, to_json(event.data()))
        if is_over:
            answer = _get_answer(task)
            yield _encode_event("problem" if answer.is_problem else "result", answer.content)
            return
        if not await events.wait(HEARTBEAT_SECONDS):
            yield KEEPALIVE_COMMENT


def _get_answer(task: asyncio.Task[EncodedAnswer]) -> EncodedAnswer:
    """Return the answer; a bug is logged here, as the server does where no answer has started."""
    try:
        return task.result()
    except Exception as error:
        LOG.error("a bug ended a stream", exc_info=error)
        return encode_problem(make_bug_fault(error))


def _encode_event(name: str, data: bytes) -> bytes:
    return format_sse_event(event=name, data_str=data.decode())
