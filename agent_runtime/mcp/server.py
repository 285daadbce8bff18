"""Serves the tools over standard input and output, or over HTTP on a socket."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable
from io import BufferedReader, FileIO, TextIOWrapper
from pathlib import Path

import uvicorn
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.access.principal import AccessScope, Principal
from agent_runtime.access.token_file import LiveTokens
from agent_runtime.errors import Forbidden, TooLarge
from agent_runtime.http.access import KEY
from agent_runtime.http.authentication import BearerTokens
from agent_runtime.http.body_limit import BodyLimit
from agent_runtime.http.connection import connection_settings
from agent_runtime.http.guard import OwnHostsOnly
from agent_runtime.http.problems import problem_response
from agent_runtime.mcp.session_limit import IDLE_SECONDS, MAX_IN_ALL, SessionLimit

PATH = "/mcp"

NEEDED: tuple[AccessScope, ...] = ("apply", "read")
"""What a token has to allow: the tools read files and have edits merged."""

MAX_BODY_BYTES = 16 << 20
"""An edit of 2 MB, however JSON spells it."""

MAX_LINE_BYTES = 64 << 20
"""Over stdio; what is over the bounds of an edit is told so up to there."""

GRACE_SECONDS = 5


def serve_stdio(server: MCPServer) -> None:
    """Until standard input ends. What is printed meanwhile goes to standard error: the output is the protocol's.

    Raises TooLarge where a line does not end: it would fill the memory.
    """
    lines = _Lines(FileIO(os.dup(0)))
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # no child reads what is the protocol's
    sys.stdin = TextIOWrapper(lines)
    server.run("stdio")
    if lines.is_cut:
        raise TooLarge(f"a message of more than {MAX_LINE_BYTES >> 20} MiB came over standard input")


class _Lines(BufferedReader):
    """Ends where a line is too long."""

    is_cut = False
    _num_bytes = 0
    """Of the line so far."""

    def read1(self, size: int = -1, /) -> bytes:
        """As of any file, but nothing from there on."""
        data = b"" if self.is_cut else super().read1(size)
        start = data.rfind(b"\n") + 1
        self._num_bytes = len(data) - start + (0 if start else self._num_bytes)
        self.is_cut = self.is_cut or self._num_bytes > MAX_LINE_BYTES
        return b"" if self.is_cut else data


def serve_http(
    server: MCPServer, listener: socket.socket, *, hosts: Iterable[str] = (), tokens: LiveTokens | None = None
) -> None:
    """Until Ctrl-C, on a socket that listens."""
    app = http_app(server, listener, hosts=hosts, tokens=tokens)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS, **connection_settings())
    uvicorn.Server(config).run(sockets=[listener])


def http_app(
    server: MCPServer, listener: socket.socket, *, hosts: Iterable[str] = (), tokens: LiveTokens | None = None
) -> ASGIApp:
    """The application; Host, and Origin where a browser sends one, have to name this address, or one of `hosts`.

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
    app = BodyLimit(SessionLimit(app), MAX_BODY_BYTES)
    return OwnHostsOnly(app if tokens is None else BearerTokens(_Allowed(app), tokens), hosts)


class _Allowed:
    """Middleware: the token has to allow what the tools do, and a session is its tenant's who began it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            principal: Principal = scope[KEY]
            try:
                for needed in NEEDED:
                    principal.check(needed)
            except Forbidden as fault:
                await problem_response(fault)(scope, receive, send)
                return
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=principal.tenant, scopes=[]))
        await self._app(scope, receive, send)
