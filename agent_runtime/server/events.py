"""Server-sent events of an apply's progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from fastapi import Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from pydantic_core import to_json

from agent_runtime.progress import Piece, Relay, Watcher
from agent_runtime.server.executor import Departure
from agent_runtime.server.problems import fault_of_bug
from agent_runtime.server.responses import Answer, Streamed, answer_of_fault

MAX_PIECES = 256
"""Of one event; behind that, neighbours of the same origin become one piece."""


@dataclass(slots=True)
class _Phase:
    """The event `phase`."""

    phase: str
    path: str

    name = "phase"

    def data(self) -> dict[str, Any]:
        return {"phase": self.phase, **_of(self.path)}


@dataclass(slots=True)
class _Tokens:
    """The event `tokens`: what was written of one region since the last."""

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
        return {"region": self.region, "pieces": pieces, **_of(self.path)}


def _of(path: str) -> dict[str, str]:
    """Whose file it is, where several are worked on."""
    return {"path": path} if path else {}


class Events(Relay):
    """Told by the threads that work, read by the event loop that it is made in.

    What a client does not take holds no more memory than the answer itself: phases are few, and the tokens of a region
    are one event until it is taken.
    """

    wants_text = True

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher)
        self.wants_text = True
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._waiting: list[_Phase | _Tokens] = []
        self._by_region: dict[tuple[str, int], _Tokens] = {}
        self._more = asyncio.Event()
        self.asked = asyncio.Event()
        """The model has taken the work on: it is no longer refused, and takes its time."""

    def entered(self, phase: str, path: str = "") -> None:
        """An event of its own."""
        with self._lock:
            self._waiting.append(_Phase(phase, path))
            for place in [place for place in self._by_region if place[0] == path]:
                del self._by_region[place]  # what comes now of this file stands behind the phase
        self.wake()
        super().entered(phase, path)

    def began(self, stop: Callable[[], None]) -> None:
        """The model has taken the work on: its first pass may take seconds, of which phases tell meanwhile."""
        if not self.asked.is_set():
            self._call(self.asked.set)
        super().began(stop)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Added to the event of this region, where it still waits."""
        with self._lock:
            tokens = self._by_region.get((path, region))
            if tokens is None:
                tokens = self._by_region[path, region] = _Tokens(region, path)
                self._waiting.append(tokens)
            tokens.add(pieces)
        self.wake()
        super().wrote_pieces(region, pieces, path)

    def wake(self) -> None:
        """There is something to be looked at; from any thread."""
        if not self._more.is_set():
            self._call(self._more.set)

    def take(self) -> list[_Phase | _Tokens]:
        """What has come since the last time, in its order."""
        self._more.clear()
        with self._lock:
            taken, self._waiting = self._waiting, []
            self._by_region.clear()
        return taken

    async def wait(self, seconds: float) -> bool:
        """Until there is more, or so long; returns whether there is."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._more.wait(), seconds)
        return self._more.is_set()

    def _call(self, what: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(what)


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
