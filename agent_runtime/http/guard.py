"""Refuses requests that a web page elsewhere, or a name that was made to point here, could send."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.errors import ForeignHost
from agent_runtime.http.problems import problem_response

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class OwnHostsOnly:
    """Middleware: the Host header has to name this service, and so has Origin, where a browser sends one.

    A service on loopback is otherwise open to every page that the user visits (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 403."""
        if scope["type"] == "http" and (foreign := self._foreign(Headers(scope=scope))):
            fault = ForeignHost(f"{foreign} is not a name of this service; `hunk serve --allow-host NAME` admits it")
            await problem_response(fault)(scope, receive, send)
            return
        await self._app(scope, receive, send)

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
