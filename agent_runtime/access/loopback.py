"""Tells whether an address is of this machine alone."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from agent_runtime.errors import BadRequest


def check_loopback(host: str) -> None:
    """Raise BadRequest where others may reach a service there, that asks nobody for a token."""
    if not _is_loopback(host):
        raise BadRequest(
            f"others reach {host or 'all addresses'}, and the service would ask nobody who they are: make a token with "
            "`hunk token new NAME` and give its file with --tokens FILE, or listen on 127.0.0.1",
            field="host",
        )


def _is_loopback(host: str) -> bool:
    """Whether all addresses of a name are; one that has none cannot be listened on anyway."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return True
    return all(ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)
