"""Gives every request an id, which its answer and the log carry."""

from __future__ import annotations

import re
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"

KEY = "hunk.request_id"
"""Key of the id in the ASGI scope."""

_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""Accepted ids: they stand in logs and headers, so no character may end a line or a field."""


def request_id(scope: Scope) -> str:
    """The id of the request, "" where it has not come through the middleware."""
    found: str = scope.get(KEY, "")
    return found


class RequestId:
    """Middleware: takes the sender's `X-Request-Id` where it is sane, else makes one, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        scope[KEY] = sent if _SANE.fullmatch(sent) else uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = scope[KEY]
            await send(message)

        await self._app(scope, receive, send_with_id)
