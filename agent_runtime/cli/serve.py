"""`hunk serve`: the HTTP service on a socket of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import uvicorn
from rich.console import Console

from agent_runtime.cli.model_options import ADAPTER, BATCH_INVARIANT, DTYPE, QUANTIZE, SPAN_DISK, SPAN_MEMORY
from agent_runtime.cli.models import INTERRUPTED
from agent_runtime.errors import BadRequest, HunkError
from agent_runtime.http.app import build_app
from agent_runtime.models.progress import LineProgress, for_console
from agent_runtime.models.settings import (
    DEFAULT_CONTEXT,
    DEFAULT_MODEL,
    DEFAULT_NUM_SEQS,
    DEFAULT_SPAN_DISK_GIB,
    DEFAULT_SPAN_GIB,
    LoadOptions,
    MergeOptions,
    ModelSettings,
)
from agent_runtime.reusing import mode_of
from agent_runtime.types import ReuseName

SHUTDOWN_SECONDS = 5
"""How long an edit may go on after Ctrl-C; one that the model still works on then is answered 503."""

ANSWER_SECONDS = 10
"""How long after that the answers may take; one pass of the model has to end first."""


def serve_command(
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Files below it may be named by path.")
    ] = None,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="A catalogue name or path.")] = DEFAULT_MODEL,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8311,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A further name of this service.")
    ] = None,
    context: Annotated[int, typer.Option("--context", min=256, help="Tokens of prompt and answer.")] = DEFAULT_CONTEXT,
    dtype: DTYPE = "bfloat16",
    quantize: QUANTIZE = None,
    adapter: ADAPTER = None,
    max_num_seqs: Annotated[
        int, typer.Option("--max-num-seqs", min=1, max=512, help="Edits that the model works on at once.")
    ] = DEFAULT_NUM_SEQS,
    kv_gib: Annotated[
        float | None, typer.Option("--kv-gib", min=0.0, help="Memory for keys and values. [two full contexts]")
    ] = None,
    batch_invariant: BATCH_INVARIANT = False,
    deadline: Annotated[
        float | None, typer.Option("--deadline", min=0.1, metavar="SECONDS", help="What the model may take an edit.")
    ] = None,
    reuse: Annotated[
        ReuseName, typer.Option("--reuse", help="What an edit that does not say takes of earlier ones.")
    ] = "exact",
    span_memory: SPAN_MEMORY = DEFAULT_SPAN_GIB,
    span_disk: SPAN_DISK = DEFAULT_SPAN_DISK_GIB,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Keep the files below the root tokenised, once one is edited.")
    ] = True,
) -> None:
    """Serve POST /apply until Ctrl-C."""
    mode_of(reuse, "exact")
    from agent_runtime.wiring import model_slot, service  # torch takes a second to import; `hunk --help` needs none

    console = Console(stderr=True, highlight=False)
    options = LoadOptions(
        dtype,
        context,
        adapter,
        quantize,
        max_num_seqs,
        kv_gib,
        batch_invariant=batch_invariant,
        span_gib=span_memory,
        span_disk_gib=span_disk if span_memory else 0.0,
    )
    merging = MergeOptions(deadline, reuse, root if watch else None)
    slot = model_slot(model, ModelSettings.from_env(os.environ), options, for_console(console), merging)
    parts = service(slot, root)
    faults: list[HunkError] = []
    with _listen(host, port) as listener:
        say = LineProgress(console).say
        name, number = listener.getsockname()[:2]

        def give_up(fault: HunkError) -> None:
            faults.append(fault)
            server.should_exit = True

        def start() -> None:
            say(f"listening on http://{_bracketed(name)}:{number}, loading {slot.name}")
            slot.load_in_background(lambda: say(f"{slot.name} is ready"), give_up)

        app = build_app(parts, hosts=[host, *(allow_host or [])], on_start=start)
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
