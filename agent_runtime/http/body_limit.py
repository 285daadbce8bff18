"""Reads a request's body within bounds of size, time, nesting and memory before anything is done about it."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import BadRequest, HunkError, RequestTooSlow, TooLarge, TooManyRequests
from agent_runtime.http.nesting import nests_deeper
from agent_runtime.http.problems import problem_response

BODY_SECONDS = 60.0
"""How long a body may take; the largest that there may be comes in that time at 10 Mbit/s."""

MAX_DEPTH = 64
"""Of arrays and objects in each other. Python's parser would take some hundreds, what is made of them fewer."""

MAX_HELD_BYTES = 512 << 20
"""Of the bodies of all requests that are being read or answered."""


class BodyLimit:
    """Middleware: answers 413, 408, 400 or 429 where a body is over `max_bytes`, too slow, too deep or one too many."""

    def __init__(
        self, app: ASGIApp, max_bytes: int, seconds: float = BODY_SECONDS, max_held_bytes: int = MAX_HELD_BYTES
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._max_held_bytes = max_held_bytes
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body in one piece."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        chunks: list[bytes] = []
        try:
            try:
                if not await self._read(scope, receive, chunks):
                    return
                body = _checked(chunks)
            except HunkError as fault:
                response = problem_response(fault)
                response.headers["Connection"] = "close"  # what is left of the body is not waited for
                await response(scope, receive, send)
                return
            await self._app(scope, _replayed(body, receive), send)
        finally:
            self._held_bytes -= sum(map(len, chunks))

    async def _read(self, scope: Scope, receive: Receive, chunks: list[bytes]) -> bool:
        """Whether all of the body has come; not where its sender has left. Raises what is answered instead."""
        announced = Headers(scope=scope).get("content-length", "")
        num_bytes = 0
        self._check(int(announced) if announced.isdigit() else 0)
        try:
            async with asyncio.timeout(self._seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    chunks.append(message.get("body", b""))
                    num_bytes += len(chunks[-1])
                    self._held_bytes += len(chunks[-1])
                    self._check(num_bytes)
                    if not message.get("more_body", False):
                        return True
        except TimeoutError:
            raise RequestTooSlow(f"the request's body did not come within {self._seconds:g} seconds") from None

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise TooLarge(f"the request's body is over the limit of {self._max_bytes / 1e6:.0f} MB")
        if self._held_bytes > self._max_held_bytes:
            raise TooManyRequests("too many large requests are being answered at once")


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _checked(chunks: list[bytes]) -> bytes:
    """The body; raises BadRequest where it is nested too deep, or in no encoding in which that can be told."""
    body = b"".join(chunks)
    if b"\0" in body:
        raise BadRequest("the body holds a NUL byte; send JSON as UTF-8")
    if nests_deeper(body, MAX_DEPTH):
        raise BadRequest(f"the body is nested deeper than {MAX_DEPTH} arrays and objects")
    return body


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
