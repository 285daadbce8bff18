"""Refuses requests that a web page elsewhere, or a name that was made to point here, could send, and abused headers."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.errors import BadRequest, ForeignHost, HeadersTooLarge, HunkError
from agent_runtime.http.problems import problem_response

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10


class OwnHostsOnly:
    """Middleware: the Host header has to name this service, and so has Origin, where a browser sends one.

    A service on loopback is otherwise open to every page that the user visits (DNS rebinding). Also refuses what two
    servers behind one another may read as two different requests.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400, 403 or 431."""
        fault = self._fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self._app(scope, receive, send)
            return
        response = problem_response(fault)
        response.headers["Connection"] = "close"  # the body, if there is one, stays unread
        await response(scope, receive, send)

    def _fault(self, scope: Scope) -> HunkError | None:
        raw = scope["headers"]
        if len(raw) > MAX_HEADERS or sum(len(name) + len(value) for name, value in raw) > MAX_HEADER_BYTES:
            return HeadersTooLarge(f"send at most {MAX_HEADERS} headers, and {MAX_HEADER_BYTES // 1024} KiB of them")
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            return BadRequest("give Content-Length or Transfer-Encoding, not both")
        if len(headers.getlist("host")) > 1 or len(headers.getlist("origin")) > 1:
            return BadRequest("give Host and Origin once")
        foreign = self._foreign(headers)
        if not foreign:
            return None
        return ForeignHost(f"{foreign} is not a name of this service; `hunk serve --allow-host NAME` admits it")

    def _foreign(self, headers: Headers) -> str:
        """Which header names another host, with its value; '' if none does."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if _hostname(f"//{host}") not in self._hosts:
            return f"Host {host!r}"
        if origin is not None and _hostname(origin) not in self._hosts:
            return f"Origin {origin!r}"
        return ""


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
