"""Tells systemd how the service is, where it was started by a unit of `Type=notify`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress


def tell_systemd(state: str, environ: Mapping[str, str]) -> None:
    """Send a state of sd_notify(3), such as `READY=1`; nothing where nobody listens."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):  # a name in Linux' abstract namespace
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        sender.sendall(state.encode())
