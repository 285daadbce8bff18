"""Authenticates requests by bearer token, checks scopes, and slows down failed attempts."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.access import LOCAL, AccessScope, Principal
from agent_runtime.errors import HunkError, TooManyRequests, Unauthorized
from agent_runtime.request_context import RequestContext
from agent_runtime.server.problems import problem_response
from agent_runtime.server.token_file import LiveTokens

PRINCIPAL_KEY = "hunk.principal"
"""Key of the principal in the ASGI scope. The middleware that checks the tokens sets it."""

CONTEXT_KEY = "hunk.context"
"""Key of the RequestContext in the ASGI scope. The middleware that admits requests sets it."""

BEARER = HTTPBearer(
    scheme_name="bearer",
    description="A token of the service; without tokens it listens on loopback only.",
    auto_error=False,
)
"""Only describes the header in the OpenAPI document: the middleware reads it."""


def require(scope: AccessScope) -> Callable[..., Awaitable[RequestContext]]:
    """Return a dependency of a route: the context of a request that has this scope. Others get `forbidden`."""

    async def check(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)] = None
    ) -> RequestContext:
        context: RequestContext | None = request.scope.get(CONTEXT_KEY)
        if context is None:  # a path that is always answered
            context = RequestContext(request.scope.get(PRINCIPAL_KEY, LOCAL))
        context.principal.check(scope)
        return context

    return check


def holder_of(scope: Scope) -> str:
    """The tenant whose token the request came with, or the sender's network where the service knows no tokens.

    Behind a proxy all requests come from one address, and the tokens tell them apart.
    """
    principal: Principal = scope.get(PRINCIPAL_KEY, LOCAL)
    if principal is not LOCAL:
        return principal.tenant
    client = scope.get("client")
    return f"@{network_of(client[0] if client else '')}"  # no tenant's name has an @


def network_of(address: str) -> str:
    """An IPv4 address as it is; of an IPv6 address its /64, of which a client has all."""
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

    Only failures count, and a right token passes whatever came before: else one client could lock out all that share
    its address, such as those behind a proxy. What guards the tokens is that 256 random bits are guessed at no rate;
    this keeps the guesses from filling the log and the machine's time. The table is bounded: whoever failed longest
    ago is forgotten first. An IPv6 address counts with its /64, of which a client has all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def record_failure(self, address: str) -> float:
        """Note a failure; the seconds until the next one is answered, 0 where this one still is."""
        key = network_of(address)
        now = self._clock()
        free_at = max(self._free_at.pop(key, now), now)  # when all failures so far are paid for
        wait = free_at + REFILL_SECONDS - now - BURST * REFILL_SECONDS
        self._free_at[key] = free_at if wait > 0 else free_at + REFILL_SECONDS
        if len(self._free_at) > MAX_ADDRESSES:
            self._free_at.popitem(last=False)
        return max(0.0, wait)

    def __len__(self) -> int:
        return len(self._free_at)


OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
OPEN_FOLDER = "/static/"
"""The page's own files hold nothing of anybody's; what the page shows it asks for with a token."""

NOBODY = Principal("nobody", frozenset())
"""The principal of routes that need no token; it has no scope."""


class BearerTokens:
    """Middleware: sets `hunk.principal` by the header `Authorization: Bearer TOKEN`, or answers 401, 429 or 503."""

    def __init__(self, app: ASGIApp, tokens: LiveTokens) -> None:
        self._app = app
        self._tokens = tokens
        self._throttle = Throttle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its principal, or answer a problem."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        assert scope["type"] == "http", "there are no websockets"
        try:
            scope[PRINCIPAL_KEY] = NOBODY if _is_open(scope) else self._principal(scope)
        except HunkError as fault:
            response = problem_response(fault)
            response.headers["Connection"] = "close"  # the body, if there is one, stays unread
            await response(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _principal(self, scope: Scope) -> Principal:
        sent = Headers(scope=scope).getlist("authorization")
        try:
            return self._tokens.principal(_token(sent))
        except Unauthorized:
            client = scope.get("client")
            wait_s = self._throttle.record_failure(client[0] if client else "")
            if not wait_s:
                raise
            raise TooManyRequests(
                "too many requests without a token that the service knows came from this address",
                retry_after_s=wait_s,
            ) from None


def _token(headers: list[str]) -> str:
    """The token of the only Authorization header; raises Unauthorized."""
    if not headers:
        raise Unauthorized("this service needs a token: send the header 'Authorization: Bearer TOKEN'")
    scheme, _, token = headers[0].partition(" ")
    if len(headers) > 1 or scheme.lower() != "bearer":
        raise Unauthorized("send one header 'Authorization: Bearer TOKEN'")
    return token.strip()


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER))
