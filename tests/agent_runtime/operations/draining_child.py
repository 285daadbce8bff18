"""A service in a process of its own, whose model answers once the file that is named has appeared.

`python -m tests.agent_runtime.operations.draining_child FILE SECONDS [stuck|breaking]`: the second is the time that a
drain may take; a model that is stuck cannot be closed, and one that is `breaking` breaks down when the file appears. An
edit of `endless.py` is worked on by rule until it is told to end.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.interface import ModelSlot
from agent_runtime.server import uvicorn_server as serving
from agent_runtime.server.app import build_app
from agent_runtime.server.service import Service
from agent_runtime.server.uvicorn_server import DrainingServer, exit_process
from agent_runtime.telemetry.log import configure_logging
from agent_runtime.types import ApplyRequest, ApplyResult
from agent_runtime.workspace.registry import WorkspaceRegistry
from editor.execution import check_stopped
from tests.agent_runtime.scripted import ScriptedMerger


class Closing(ScriptedMerger):
    """Closing it ends its work, as the real one's does."""

    def close(self) -> None:
        super().close()
        self.stopped.set()


class Stuck(ScriptedMerger):
    """Cannot be closed."""

    def close(self) -> None:
        threading.Event().wait()


class Endless(Applier):
    """Looks for ever whether its work is to end."""

    def apply(self, request: ApplyRequest, *more: Any) -> ApplyResult:
        while request.path == "endless.py":
            time.sleep(0)
            check_stopped()
        return super().apply(request, *more)


def main() -> None:
    serving.OVERDUE_SECONDS = 0.5
    go, drain_s = Path(sys.argv[1]), float(sys.argv[2])
    hold = threading.Event()

    def wait() -> None:
        while not go.exists():
            time.sleep(0.01)
        if "breaking" in sys.argv:
            merger.broken = RuntimeError("the card is lost")
        hold.set()

    merger = (Stuck if "stuck" in sys.argv else Closing)("a = 3\nb = 2\n", hold=hold)
    slot = ModelSlot("scripted", lambda: merger)
    slot.load()
    threading.Thread(target=wait, daemon=True).start()
    log = configure_logging("json", "info")
    service = Service(Endless(slot.get), slot, WorkspaceRegistry(None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(build_app(service), log_config=None, access_log=False, timeout_graceful_shutdown=1)
        server = DrainingServer(config, service.drain, drain_s, slot.close, log.finish, lambda: slot.has_broken_down)
        server.run(sockets=[listener])
    log.finish()
    exit_process(int(slot.has_broken_down))


main()
