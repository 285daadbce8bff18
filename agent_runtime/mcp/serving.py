"""Serves the tools over standard input and output, or over HTTP on a socket."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette

from agent_runtime.errors import BadRequest

PATH = "/mcp"

MAX_BODY_BYTES = 16 << 20
"""An edit of 2 MB, however JSON spells it."""

GRACE_SECONDS = 5


def serve_stdio(server: MCPServer) -> None:
    """Until standard input ends. What is printed meanwhile goes to standard error: the output is the protocol's."""
    server.run("stdio")


def serve_http(server: MCPServer, listener: socket.socket) -> None:
    """Until Ctrl-C, on a socket that listens."""
    config = uvicorn.Config(http_app(server, listener), log_level="warning", timeout_graceful_shutdown=GRACE_SECONDS)
    uvicorn.Server(config).run(sockets=[listener])


def http_app(server: MCPServer, listener: socket.socket) -> Starlette:
    """The application; Host, and Origin where a browser sends one, have to name this very address.

    A server on loopback is otherwise open to every page that the user visits (DNS rebinding).
    """
    host, port = listener.getsockname()[:2]
    names = [f"{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]")]
    return server.streamable_http_app(
        streamable_http_path=PATH,
        host=host,
        max_request_body_size=MAX_BODY_BYTES,
        transport_security=TransportSecuritySettings(
            allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
        ),
    )


def check_loopback(host: str) -> None:
    """Raise BadRequest where others could reach it: the tools write files, and nobody is asked who they are."""
    try:
        inside = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise BadRequest(
            f"{host} is not this machine alone, and this server asks nobody for a token: listen on 127.0.0.1, and "
            "put a proxy that knows its users before it",
            field="host",
        )
