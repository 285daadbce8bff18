"""Runs the service on a socket, and commands, in this process; and CPU slots that record who holds them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from click.testing import Result
from typer.testing import CliRunner

from agent_runtime.apply.pipeline import Applier
from agent_runtime.cli.main import app
from agent_runtime.llm.interface import Merger, ModelSlot
from agent_runtime.quotas import CpuSlots
from agent_runtime.server.app import build_app
from agent_runtime.server.service import Service
from agent_runtime.server.uvicorn_server import make_connection_settings
from agent_runtime.workspace.registry import WorkspaceRegistry


@contextmanager
def serving(
    merger: Merger | None,
    root: Path | None = None,
    fault: Exception | None = None,
    change: Callable[[Service], Service] = lambda service: service,
) -> Iterator[str]:
    """The service's URL, with `merger` loaded, or none yet, or loading ended by `fault`; `change` may replace parts."""

    def load() -> Merger:
        if fault is not None:
            raise fault
        assert merger is not None
        return merger

    slot = ModelSlot("scripted", load)
    loaded = threading.Event()
    if merger is not None or fault is not None:
        slot.load_in_background(loaded.set, lambda _: loaded.set())
        loaded.wait()
    app = build_app(change(Service(Applier(slot.get), slot, WorkspaceRegistry(root))))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2, **make_connection_settings())
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def asking(url: str, body: dict[str, Any], to: str = "/apply", **headers: str) -> Iterator[socket.socket]:
    """The connection of a client that has sent its request, and hangs up at the end whatever has become of it."""
    host, port = url.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = f"POST {to} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    head += "".join(f"\r\n{name}: {value}" for name, value in headers.items())
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + content)
        yield connection


def post(url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/apply", json=body, headers=headers, timeout=30)


def hunk_here(*arguments: str | Path, stdin: str = "") -> Result:
    """Run `hunk` with these arguments; an error is `.exception`, which `main.run` would print."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


class RecordingSlots(CpuSlots):
    """Records in `events`: `acquired`, and `released` if that is before the end of the work, once a slot."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events

    @asynccontextmanager
    async def acquire(self, flow: str) -> AsyncIterator[Callable[[], None]]:
        """Record it."""
        async with super().acquire(flow) as release:
            self._events.append("acquired")
            is_recorded = False

            def record_release() -> None:
                nonlocal is_recorded
                if not is_recorded:
                    is_recorded = True
                    self._events.append("released")
                release()

            yield record_release
