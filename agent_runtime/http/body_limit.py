"""Refuses a request body over a limit before it is read into memory."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import TooLarge
from agent_runtime.http.problems import problem_response


class BodyLimit:
    """Middleware: answers 413 where Content-Length, or what really comes, is over `max_bytes`."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            await problem_response(self._fault())(scope, receive, send)
            return
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise HTTPException(413, str(self._fault()))
            return message

        await self._app(scope, counted, send)

    def _fault(self) -> TooLarge:
        return TooLarge(f"the request's body is over the limit of {self._max_bytes / 1e6:.0f} MB")
