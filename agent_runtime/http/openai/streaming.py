"""Streams an answer as server-sent events in OpenAI's shape, while a thread works on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

from fastapi import Request, Response
from pydantic_core import to_json

from agent_runtime.errors import HunkError
from agent_runtime.generation.relay import Relay
from agent_runtime.generation.watcher import Piece, Watcher
from agent_runtime.http.leaving import Departure
from agent_runtime.http.openai.completions import Completion, Reply
from agent_runtime.http.openai.errors import error_of
from agent_runtime.http.problems import fault_of_bug
from agent_runtime.http.running import run_watched
from agent_runtime.http.service import Service
from agent_runtime.http.streaming import Streamed
from agent_runtime.shapes import problem_of

QUIET_SECONDS = 10.0
"""After so long without text the client, and every proxy between, is told that the work goes on."""

PIECE_CHARACTERS = 4096
"""Of a text that is there at once, in a chunk."""

HEARTBEAT = b": the work goes on\n\n"


class Texts(Relay):
    """The text of an answer on its way from the thread that writes it to the event loop that this is made in.

    What the client has not taken is put together, and takes no more memory than the answer.
    """

    def __init__(self, watcher: Watcher, *, wants_text: bool) -> None:
        """Without `wants_text` there is none: the answer counts only as a whole."""
        super().__init__(watcher)
        self.wants_text = wants_text
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._waiting: list[str] = []
        self._more = asyncio.Event()

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Called in the thread."""
        with self._lock:
            self._waiting += [piece.text for piece in pieces]
        with suppress(RuntimeError):  # the loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(self._more.set)

    def take(self) -> str:
        """What was written since the last time."""
        self._more.clear()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return "".join(waiting)

    async def wait(self, task: asyncio.Task[Reply]) -> bool:
        """Until there is text or the task has ended, or else so long that the client should hear something: False."""
        more = asyncio.create_task(self._more.wait())
        try:
            done, _ = await asyncio.wait((more, task), timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            more.cancel()
        return bool(done)


async def stream(
    service: Service,
    request: Request,
    work: Callable[[Watcher], Reply],
    completion: Completion,
    *,
    with_usage: bool,
    as_written: bool,
) -> Response:
    """The answer of `work` in chunks: `as_written` by the model, or where it counts only as a whole, once it is there.

    What fails before there is any text is raised, and answered with its own status; what fails later is told in the
    stream, as OpenAI's clients expect it.
    """
    departure = Departure()
    texts = Texts(departure, wants_text=as_written)
    watching = asyncio.create_task(departure.wait_for(request))
    task = asyncio.create_task(run_watched(service, work, texts))
    task.add_done_callback(_look_at)
    try:
        await texts.wait(task)
        if task.done():
            task.result()
    except BaseException:
        watching.cancel()
        departure.happen()
        raise

    def end() -> None:
        watching.cancel()
        departure.happen()

    return Streamed(_chunks(texts, task, completion, with_usage), end, "text/event-stream", {})


async def _chunks(
    texts: Texts, task: asyncio.Task[Reply], completion: Completion, with_usage: bool
) -> AsyncIterator[bytes]:
    yield _event(completion.begin())
    num_sent, has_news = 0, True
    try:
        while not task.done():
            if text := texts.take():
                num_sent += len(text)
                yield _event(completion.piece(text))
            elif not has_news:
                yield HEARTBEAT
            has_news = await texts.wait(task)
        reply = task.result()
    except HunkError as fault:
        yield _event(error_of(problem_of(fault)))
        return
    except Exception as error:  # noqa: BLE001 -- the answer has begun: its status cannot tell it any more
        yield _event(error_of(problem_of(fault_of_bug(error))))
        return
    for start in range(num_sent, len(reply.text), PIECE_CHARACTERS):
        yield _event(completion.piece(reply.text[start : start + PIECE_CHARACTERS]))
    yield _event(completion.end(reply))
    if with_usage:
        yield _event(completion.usage(reply))
    yield b"data: [DONE]\n\n"


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"


def _look_at(task: asyncio.Task[Reply]) -> None:
    """How it ended may interest nobody: the client has left."""
    if not task.cancelled():
        task.exception()
