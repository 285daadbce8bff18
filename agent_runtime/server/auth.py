"""Checks who sends a request: its Host and Origin headers, its bearer token, and the scopes of that."""

from __future__ import annotations

import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.errors import BadRequest, ForeignHost, HeadersTooLarge, HunkError, TooManyRequests, Unauthorized
from agent_runtime.request_context import CONTEXT_KEY, LOCAL, PRINCIPAL_KEY, AccessScope, Principal, RequestContext
from agent_runtime.server.problems import make_problem_response
from agent_runtime.server.token_file import LiveTokens

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

DEFAULT_PORTS = {"http": "80", "https": "443"}

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")

OWN_SITES = frozenset({"none", "same-origin"})
"""Accepted values of `Sec-Fetch-Site`: the user opened the URL, or the page sent the request. Another port of this
machine is `same-site`."""

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32 << 10


class HostGuardMiddleware:
    """Middleware that refuses requests for a foreign Host, and requests that a browser sends for a foreign page.

    Otherwise every page that the user visits could use a service on loopback: by sending a request (checked by Origin),
    by loading an image or a frame, which has no Origin (Sec-Fetch-Site), or by a name that resolves to this machine
    (Host; DNS rebinding). It also refuses headers that a proxy and this server could read as different requests.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._allowed = {host.lower().strip("[]") for host in hosts} - LOOPBACK

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 400, 403 or 431."""
        fault = self._find_fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self._app(scope, receive, send)
            return
        response = make_problem_response(fault)
        response.headers["Connection"] = "close"  # the body, if there is one, stays unread
        await response(scope, receive, send)

    def _find_fault(self, scope: Scope) -> HunkError | None:
        raw = scope["headers"]
        if len(raw) > MAX_HEADERS or sum(len(name) + len(value) for name, value in raw) > MAX_HEADER_BYTES:
            return HeadersTooLarge(f"send at most {MAX_HEADERS} headers, and {MAX_HEADER_BYTES // 1024} KiB of them")
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            return BadRequest("give Content-Length or Transfer-Encoding, not both")
        if len(headers.getlist("host")) > 1 or len(headers.getlist("origin")) > 1:
            return BadRequest("give Host and Origin once")
        foreign = self._find_foreign_header(scope, headers)
        if not foreign:
            return None
        return ForeignHost(f"{foreign} is not a name of this service; `--allow-host NAME` admits it")

    def _find_foreign_header(self, scope: Scope, headers: Headers) -> str:
        """Return the header that names another host, with its value; '' if none does."""
        host, origin, site = headers.get("host", ""), headers.get("origin"), headers.get("sec-fetch-site", "none")
        asked = _parse_host(host, "")
        if asked is None or asked[0] not in LOOPBACK | self._allowed:
            return f"Host {host!r}"
        if origin is not None and not self._is_own(origin, host):
            return f"Origin {origin!r}"
        if site.lower() not in OWN_SITES and not _is_page_link(scope, headers):
            return f"Sec-Fetch-Site {site!r}"
        return ""

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether an Origin is this service: the requested host and port, or an allowed host."""
        scheme, _, sender = origin.lower().partition("://")
        port = DEFAULT_PORTS.get(scheme)
        sent = None if port is None else _parse_host(sender, port)
        return sent is not None and (sent == _parse_host(host, port or "") or sent[0] in self._allowed)


def _parse_host(host: str, default_port: str) -> tuple[str, str] | None:
    """Return the name in a Host header, without brackets, and the port; None if the header is malformed."""
    found = _HOST.fullmatch(host.lower())
    return None if found is None else (found[1].strip("[]"), found[2] or default_port)


def _is_page_link(scope: Scope, headers: Headers) -> bool:
    """Return whether the request follows a link to the page, which any site may hold."""
    is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_link and scope["method"] == "GET" and scope["path"] == "/"


BEARER = HTTPBearer(
    scheme_name="bearer",
    description="A token of the service; without tokens it listens on loopback only.",
    auto_error=False,
)
"""Only describes the header in the OpenAPI document: the middleware reads it."""


def require(scope: AccessScope) -> Callable[..., Awaitable[RequestContext]]:
    """Return a dependency of a route that gives the request's context; it raises Forbidden without the scope."""

    async def check(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)] = None
    ) -> RequestContext:
        context: RequestContext | None = request.scope.get(CONTEXT_KEY)
        if context is None:  # a path that `AdmissionMiddleware` does not limit
            context = RequestContext(request.scope.get(PRINCIPAL_KEY, LOCAL))
        context.principal.check(scope)
        return context

    return check


def get_flow(scope: Scope) -> str:
    """Return the flow of a request: the tenant of its token, or the sender's network if the service has no tokens.

    Behind a proxy all requests come from one address; their tokens tell them apart.
    """
    principal: Principal = scope.get(PRINCIPAL_KEY, LOCAL)
    if principal is not LOCAL:
        return principal.tenant
    client = scope.get("client")
    return f"@{get_network(client[0] if client else '')}"  # no tenant's name has an @


def get_network(address: str) -> str:
    """Return an IPv4 address unchanged, and the /64 network of an IPv6 address: one client has a whole /64."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(parsed), 64), strict=False))
    return str(parsed)


BURST = 20
REFILL_SECONDS = 3.0
MAX_ADDRESSES = 4096


class Throttle:
    """Counts the failures of each client address: `BURST` at once, then one every `REFILL_SECONDS`.

    Only failures count, and a valid token always passes: otherwise one client could lock out all that share its
    address, such as those behind a proxy. Tokens need no such protection, since 256 random bits cannot be guessed; the
    limit keeps guesses from filling the log and using the CPU. The table is bounded: the oldest failure is dropped
    first. Addresses are grouped by `get_network`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def record_failure(self, address: str) -> float:
        """Record a failure; return the seconds until the next one is answered, 0 if this one is."""
        key = get_network(address)
        now = self._clock()
        free_at = max(self._free_at.pop(key, now), now)  # when all failures so far are paid for
        wait = free_at + REFILL_SECONDS - now - BURST * REFILL_SECONDS
        self._free_at[key] = free_at if wait > 0 else free_at + REFILL_SECONDS
        if len(self._free_at) > MAX_ADDRESSES:
            self._free_at.popitem(last=False)
        return max(0.0, wait)

    def __len__(self) -> int:
        return len(self._free_at)


OPEN_PATHS = frozenset({"/", "/docs", "/healthz", "/readyz"})
OPEN_FOLDER = "/static/"
"""The page's own files are public; the page fetches its data with a token."""

NOBODY = Principal("nobody", frozenset())
"""The principal of routes that need no token; it has no scope."""


class BearerTokenMiddleware:
    """Middleware that finds the principal by the header `Authorization: Bearer TOKEN`, or answers 401, 429 or 503."""

    def __init__(self, app: ASGIApp, tokens: LiveTokens) -> None:
        self._app = app
        self._tokens = tokens
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its principal, or answer with a problem."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        assert scope["type"] == "http", "there are no websockets"
        try:
            scope[PRINCIPAL_KEY] = NOBODY if _is_open(scope) else self._find_principal(scope)
        except HunkError as fault:
            response = make_problem_response(fault)
            response.headers["Connection"] = "close"  # the body, if there is one, stays unread
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _find_principal(self, scope: Scope) -> Principal:
        sent = Headers(scope=scope).getlist("authorization")
        try:
            return self._tokens.find_principal(_parse_token(sent))
        except Unauthorized:
            client = scope.get("client")
            wait_s = self._throttle.record_failure(client[0] if client else "")
            if not wait_s:
                raise
            raise TooManyRequests(
                "too many requests without a token that the service knows came from this address",
                retry_after_s=wait_s,
            ) from None


def _parse_token(headers: list[str]) -> str:
    """Return the token of the only Authorization header; raises Unauthorized."""
    if not headers:
        raise Unauthorized("this service needs a token: send the header 'Authorization: Bearer TOKEN'")
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != "bearer":
        raise Unauthorized("send one header 'Authorization: Bearer TOKEN'")
    return token.strip()


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))
