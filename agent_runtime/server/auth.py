"""Lets in who sends a token that the service knows, and says whose it is."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.access.principal import Principal
from agent_runtime.access.token_file import LiveTokens
from agent_runtime.errors import HunkError, TooManyRequests, Unauthorized
from agent_runtime.http.access import KEY
from agent_runtime.http.problems import problem_response
from agent_runtime.http.throttle import Throttle

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz"})
OPEN_FOLDER = "/static/"
"""The page's own files hold nothing of anybody's; what the page shows it asks for with a token."""

NOBODY = Principal("nobody", frozenset())
"""Who asks for what is open to all: may do nothing else."""


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
            scope[KEY] = NOBODY if _is_open(scope) else self._principal(scope)
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
            wait_s = self._throttle.failed(client[0] if client else "")
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
