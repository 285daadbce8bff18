"""`hunk serve`: the HTTP service on a socket of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from typing import NoReturn

import uvicorn
from rich.console import Console

from agent_runtime.cli.models import INTERRUPTED
from agent_runtime.cli.setting_options import takes
from agent_runtime.errors import BadRequest, HunkError
from agent_runtime.models.progress import LineProgress, for_console
from agent_runtime.reusing import mode_of
from agent_runtime.settings.choosing import Chosen
from agent_runtime.settings.loading import merge_options, model_settings, service_options

SHUTDOWN_SECONDS = 5
"""How long an edit may go on after Ctrl-C; one that the model still works on then is answered 503."""

ANSWER_SECONDS = 10
"""How long after that the answers may take; one pass of the model has to end first."""


@takes("serve")
def serve_command(chosen: Chosen) -> None:
    """Serve POST /apply until Ctrl-C.

    Every option may also stand in a file or in the environment: see `hunk config`.
    """
    settings = chosen.values
    mode_of(settings.reuse, "exact")
    from agent_runtime.http.app import build_app  # these two take a second to import; `hunk --help` needs neither
    from agent_runtime.wiring import model_slot, open_workspaces, service

    console = Console(stderr=True, highlight=False)
    progress, models = for_console(console), model_settings(os.environ, chosen)
    workspaces = open_workspaces(settings.root, settings.allow_root, models, progress, watch=settings.watch)
    slot = model_slot(settings.model, models, service_options(settings), progress, merge_options(settings), workspaces)
    parts = service(slot, workspaces)
    faults: list[HunkError] = []
    with _listen(settings.host, settings.port) as listener:
        say = LineProgress(console).say
        name, number = listener.getsockname()[:2]

        def give_up(fault: HunkError) -> None:
            faults.append(fault)
            server.should_exit = True

        def start() -> None:
            say(f"listening on http://{_bracketed(name)}:{number}, loading {slot.name}")
            slot.load_in_background(lambda: say(f"{slot.name} is ready"), give_up)

        app = build_app(parts, hosts=[settings.host, *settings.allow_host], on_start=start)
        grace = SHUTDOWN_SECONDS + ANSWER_SECONDS
        server = _Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=grace), slot.close)
        code = 0
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            code = INTERRUPTED
    if faults:
        raise faults[0]
    _leave(code)


class _Server(uvicorn.Server):
    """Ends the model's work a while after the end was asked for: what is cancelled instead leaves a traceback."""

    def __init__(self, config: uvicorn.Config, end_work: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_work = end_work

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, but for that."""
        loop = asyncio.get_running_loop()
        ending = loop.call_later(SHUTDOWN_SECONDS, loop.run_in_executor, None, self._end_work)
        await super().shutdown(sockets)
        ending.cancel()


def _leave(code: int) -> NoReturn:
    """End at once: a thread that is inside torch (loading, merging) aborts the process at an orderly shutdown."""
    sys.stderr.flush()
    os._exit(code)


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket; raises BadRequest where the address cannot be had."""
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


def _bracketed(name: str) -> str:
    return f"[{name}]" if ":" in name else name
