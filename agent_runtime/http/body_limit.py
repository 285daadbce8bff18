"""Reads a request's body within bounds of size, time, structure and memory before anything is done about it."""

from __future__ import annotations

import asyncio
from io import BytesIO

from anyio.to_thread import run_sync
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import HunkError, RequestTooSlow, TooLarge, TooManyRequests
from agent_runtime.http.draining import Drain
from agent_runtime.http.holder import holder_of
from agent_runtime.http.problems import problem_response
from agent_runtime.http.structure import BLOCK_BYTES, check_structure
from agent_runtime.limiting import Shares

BODY_SECONDS = 60.0
"""How long a body may take; the largest that there may be comes in that time at 10 Mbit/s."""

WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
"""The methods that may have one. What is open to all is only to be read, so of nobody a body is ever waited for."""

MAX_HELD_BYTES = 512 << 20
"""Of the bodies of all requests that are being read or answered; each sender has a share (`Shares`)."""


class BodyLimit:
    """Middleware: answers 413, 408, 400 or 429 where a body is over `max_bytes`, too slow, made badly or one too many.

    Has to stand inside of what tells whose request it is: a body is read of nobody who may not send one, and what is
    held of it counts for its sender, so that no sender has the memory of all.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        seconds: float = BODY_SECONDS,
        max_held_bytes: int = MAX_HELD_BYTES,
        drain: Drain | None = None,
    ) -> None:
        self._app = app
        self._drain = drain or Drain()
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._held = Shares(max_held_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body in one piece."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        if scope["method"] not in WITH_BODY:  # its body means nothing, and is not read
            await self._app(scope, _replayed(b"", receive), _closing(send))
            return
        held = BytesIO()  # grows without copying what it holds, which a list of pieces could not be joined without
        holder = holder_of(scope)
        try:
            try:
                if not await self._read(scope, receive, holder, held):
                    return
                body = held.getvalue()
                if len(body) > BLOCK_BYTES:
                    await run_sync(check_structure, body)
                else:
                    check_structure(body)
            except HunkError as fault:
                response = problem_response(fault)
                response.headers["Connection"] = "close"  # what is left of the body is not waited for
                await response(scope, receive, send)
                return
            await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held.give_back(holder, held.tell())

    async def _read(self, scope: Scope, receive: Receive, holder: str, held: BytesIO) -> bool:
        """Whether all of the body has come; not where its sender has left. Raises what is answered instead."""
        announced = Headers(scope=scope).get("content-length", "")
        num_bytes = 0
        self._check(int(announced) if announced.isdigit() else 0)
        try:
            async with asyncio.timeout(self._seconds) as wait:
                with self._drain.may_end(wait):
                    while (message := await receive())["type"] != "http.disconnect":
                        chunk = message.get("body", b"")
                        num_bytes += len(chunk)
                        self._check(num_bytes)
                        if not self._held.take(holder, len(chunk)):
                            raise TooManyRequests("too many large requests of yours are being answered at once")
                        held.write(chunk)
                        if not message.get("more_body", False):
                            return True
                    return False
        except TimeoutError:
            if self._drain.is_over:
                raise self._drain.fault from None
            raise RequestTooSlow(f"the request's body did not come within {self._seconds:g} seconds") from None

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise TooLarge(f"the request's body is over the limit of {self._max_bytes / 1e6:.0f} MB")


def _closing(send: Send) -> Send:
    """What sends an answer with which the connection ends, as what is left of the body is not waited for."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return closing


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What gives the body at first, and then what comes behind it: that the sender has left."""
    is_new = True

    async def replayed() -> Message:
        nonlocal is_new
        if is_new:
            is_new = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed
