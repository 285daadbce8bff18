"""Serves MCP over standard input and output, or over HTTP."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import Forbidden, TooLarge, TooManyRequests
from agent_runtime.request_context import PRINCIPAL_KEY, AccessScope, Principal
from agent_runtime.server.auth import BearerTokenMiddleware, HostGuardMiddleware, get_flow
from agent_runtime.server.problems import make_problem_response
from agent_runtime.server.request_body import BodyLimitMiddleware
from agent_runtime.server.token_file import LiveTokens
from agent_runtime.server.uvicorn_server import make_connection_settings

SESSION_ID = "mcp-session-id"

MAX_OF_HOLDER = 64
MAX_IN_ALL = 1024
IDLE_SECONDS = 1800.0
"""A session ends after this time without a request or an open stream; its agent may start another."""


@dataclass(slots=True)
class _Session:
    holder: str
    used_at: float
    num_in_work: int = 0


class SessionLimit:
    """Middleware that answers 429 where a sender has too many sessions; the SDK ends idle ones.

    A sender is a tenant, or an address where there are no tokens. Used on one event loop.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most: int = MAX_OF_HOLDER,
        idle_s: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: dict[str, _Session] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and record which session it starts, uses or ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = Headers(scope=scope).get(SESSION_ID)
        if name is None:
            await self._begin(scope, receive, send)
        else:
            await self._use(name, scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        holder, now = get_flow(scope), self._clock()
        for name, one in list(self._sessions.items()):
            if not one.num_in_work and now - one.used_at > self._idle_s:
                del self._sessions[name]
        # A session that is being started has two entries, and counts once.
        if len({id(one) for one in self._sessions.values() if one.holder == holder}) >= self._most:
            fault = TooManyRequests(f"you have {self._most} sessions already; end one of them")
            await make_problem_response(fault)(scope, receive, send)
            return
        session = _Session(holder, now, num_in_work=1)
        beginning = f"{id(session)} begins"  # ids of the protocol contain no space
        self._sessions[beginning] = session

        async def record_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = Headers(raw=message["headers"]).get(SESSION_ID)
                if name is not None:
                    self._sessions[name] = session
            await send(message)

        try:
            await self._app(scope, receive, record_and_send)
        finally:
            del self._sessions[beginning]
            self._release(session)

    async def _use(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.get(name)

        async def forget_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "DELETE" and message["status"] < 400:
                self._sessions.pop(name, None)
            await send(message)

        if session is not None:
            session.num_in_work += 1
        try:
            await self._app(scope, receive, forget_and_send)
        finally:
            if session is not None:
                self._release(session)

    def _release(self, session: _Session) -> None:
        session.num_in_work -= 1
        session.used_at = self._clock()


PATH = "/mcp"

NEEDED: tuple[AccessScope, ...] = ("apply", "read")
"""Scopes that a token needs: the tools read files and merge edits."""

MAX_BODY_BYTES = 16 << 20
"""Enough for an edit of 2 MB with every character escaped in JSON."""

MAX_LINE_BYTES = 64 << 20
"""Over stdio; a shorter line with an edit that is too large gets an answer that says so."""

GRACE_SECONDS = 5


def serve_stdio(server: MCPServer) -> None:
    """Serve until standard input ends. The protocol owns standard output: other output goes to standard error.

    Raises TooLarge for a line that is too long: it would fill the memory.
    """
    lines = _Lines(FileIO(os.dup(0)))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # no child process reads the protocol's input
    sys.stdin = TextIOWrapper(lines)
    server.run("stdio")
    if lines.is_cut:
        raise TooLarge(f"a message of more than {MAX_LINE_BYTES >> 20} MiB came over standard input")


class _Lines(BufferedReader):
    """Reads lines; ends at one that is too long."""

    is_cut = False
    _num_bytes = 0
    """Length of the current line."""

    def read1(self, size: int = -1, /) -> bytes:
        """Read bytes, none after a line that is too long."""
        data = b"" if self.is_cut else super().read1(size)
        start = data.rfind(b"\n") + 1
        self._num_bytes = len(data) - start + (0 if start else self._num_bytes)
        self.is_cut = self.is_cut or self._num_bytes > MAX_LINE_BYTES
        return b"" if self.is_cut else data


def serve_http(
    server: MCPServer, listener: socket.socket, *, hosts: Iterable[str] = (), tokens: LiveTokens | None = None
) -> None:
    """Serve on a listening socket until Ctrl-C."""
    app = build_http_app(server, listener, hosts=hosts, tokens=tokens)
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS, **make_connection_settings()
    )
    uvicorn.Server(config).run(sockets=[listener])


def build_http_app(
    server: MCPServer, listener: socket.socket, *, hosts: Iterable[str] = (), tokens: LiveTokens | None = None
) -> ASGIApp:
    """Build the application; Host, and Origin where a browser sends one, must name this address or one of `hosts`.

    A server on loopback is otherwise open to every page that the user visits (DNS rebinding). With `tokens` each
    request needs one of them.
    """
    host, port = listener.getsockname()[:2]
    given = [f"[{name}]" if ":" in name else name for name in hosts]
    names = [f"{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]", *given)] + given
    origins = [f"{scheme}://{name}" for scheme in ("http", "https") for name in names]
    app: ASGIApp = server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        max_request_body_size=MAX_BODY_BYTES,
        session_idle_timeout=IDLE_SECONDS,
        max_sessions=MAX_IN_ALL,
        transport_security=TransportSecuritySettings(allowed_hosts=names, allowed_origins=origins),
    )
    app = BodyLimitMiddleware(SessionLimit(app), MAX_BODY_BYTES)
    return HostGuardMiddleware(app if tokens is None else BearerTokenMiddleware(ScopeCheck(app), tokens), hosts)


class ScopeCheck:
    """Middleware that checks the token's scopes, and binds a session to the tenant that started it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            principal: Principal = scope[PRINCIPAL_KEY]
            try:
                for needed in NEEDED:
                    principal.check(needed)
            except Forbidden as fault:
                await make_problem_response(fault)(scope, receive, send)
                return
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.tenant, scopes=[]))
        await self._app(scope, receive, send)
