"""The service on a socket of its own, in this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from agent_runtime.apply import Applier
from agent_runtime.http.app import Service, build_app
from agent_runtime.model_slot import ModelSlot
from agent_runtime.types import Merger
from agent_runtime.workspace import Workspace


@contextmanager
def serving(merger: Merger | None, root: Path | None = None, fault: Exception | None = None) -> Iterator[str]:
    """The service's URL, with `merger` loaded, or none yet, or loading ended by `fault`."""

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
    app = build_app(Service(Applier(slot.get), slot, Workspace(root) if root else None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def post(url: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{url}/apply", json=body, headers=headers, timeout=30)
