"""A socket for a service, and the URL under which it is reached."""

from __future__ import annotations

import socket

from agent_runtime.errors import BadRequest


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; raises BadRequest where the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from here on clients wait instead of being refused
    except OSError as error:
        raise BadRequest(
            f"cannot listen on {host}:{port}: {error.strerror or error}; "
            "choose another with --port (0 takes a free one)",
            field="port",
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Such as http://127.0.0.1:8311."""
    name, number = listener.getsockname()[:2]
    return f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
