"""Refuses requests with a foreign Host or Origin, and abused headers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.errors import BadRequest, ForeignHost, HeadersTooLarge, HunkError
from agent_runtime.server.problems import problem_response

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

DEFAULT_PORTS = {"http": "80", "https": "443"}

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")

OWN_SITES = frozenset({"none", "same-origin"})
"""Of `Sec-Fetch-Site`: the user's own doing, and the page. Another port of this machine is `same-site`."""

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10


class OwnHostsOnly:
    """Middleware: the Host header has to name this service, and what a browser says of the sender has to be this page.

    A service on loopback is otherwise open to every page that the user visits: to what it sends (Origin), to what it
    loads (Sec-Fetch-Site: pictures and frames have no Origin), and by a name that was made to point here (DNS
    rebinding). Also refuses what two servers behind one another may read as two different requests.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._given = {host.lower().strip("[]") for host in hosts} - LOOPBACK

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
        foreign = self._foreign(scope, headers)
        if not foreign:
            return None
        return ForeignHost(f"{foreign} is not a name of this service; `--allow-host NAME` admits it")

    def _foreign(self, scope: Scope, headers: Headers) -> str:
        """Which header names another host, with its value; '' if none does."""
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site", "none")
        asked = _address(host, "")
        if asked is None or asked[0] not in LOOPBACK | self._given:
            return f"Host {host!r}"
        if origin is not None and not self._is_own(origin, host):
            return f"Origin {origin!r}"
        if site.lower() not in OWN_SITES and not _opens_the_page(scope, headers):
            return f"Sec-Fetch-Site {site!r}"
        return ""

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether an Origin is this service: the requested host and port, or an allowed host."""
        scheme, _, sender = origin.lower().partition("://")
        port = DEFAULT_PORTS.get(scheme)
        sent = None if port is None else _address(sender, port)
        return sent is not None and (sent == _address(host, port or "") or sent[0] in self._given)


def _address(host: str, default_port: str) -> tuple[str, str] | None:
    """The name in a Host header, without brackets, and the port; None where it is no sane one."""
    found = _HOST.fullmatch(host.lower())
    return None if found is None else (found[1].strip("[]"), found[2] or default_port)


def _opens_the_page(scope: Scope, headers: Headers) -> bool:
    """Return whether the request follows a link to the page, which any site may hold."""
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_link and scope["method"] == "GET" and scope["path"] == "/"
