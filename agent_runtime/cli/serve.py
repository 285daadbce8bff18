"""`hunk serve` and `hunk mcp`: run the HTTP service, and the MCP server."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated

import typer
import uvicorn
from rich.console import Console

from agent_runtime.certainty import WRITE_CERTAINTY, Certainty
from agent_runtime.cli.deploy import check_replicas, make_replica_slot
from agent_runtime.cli.options import INTERRUPTED, add_settings, open_client
from agent_runtime.config import ResolvedSettings
from agent_runtime.config.sources import make_history, make_model_settings, make_service_options
from agent_runtime.errors import BadRequest, HunkError
from agent_runtime.llm.interface import resolve_reuse_mode
from agent_runtime.local_services import announce
from agent_runtime.models.config import NO_MODEL, MergeOptions
from agent_runtime.models.progress import LineProgress, make_progress
from agent_runtime.server.token_file import LiveTokens, TokenFile
from agent_runtime.telemetry.log import configure_logging

if TYPE_CHECKING:
    from agent_runtime.llm.interface import Merger
    from agent_runtime.mcp.backends import Backend

MAX_CONCURRENT = 256
"""Requests of one tenant at the same time, where there are tokens; a quarter of what the service takes."""


@add_settings("serve")
def serve_command(resolved: ResolvedSettings) -> None:
    """Serve POST /apply until Ctrl-C or SIGTERM, after which running requests may finish.

    Every option may also be set in a file or in the environment: see `hunk config`.
    """
    settings = resolved.values
    resolve_reuse_mode(settings.reuse, "exact")
    check_replicas(settings)
    tokens = None if settings.tokens is None else LiveTokens(TokenFile(settings.tokens))
    if tokens is None:
        check_loopback(settings.host)
    from agent_runtime.quotas import TenantLimits
    from agent_runtime.server.app import build_app  # slow imports that `hunk --help` does not need
    from agent_runtime.server.uvicorn_server import (
        ANSWER_SECONDS,
        DrainingServer,
        exit_process,
        make_connection_settings,
        notify_systemd,
    )
    from agent_runtime.telemetry.traces import make_tracer_provider
    from agent_runtime.wiring import build_service, make_model_slot, open_workspaces

    console = Console(stderr=True, highlight=False)
    progress, models = make_progress(console), make_model_settings(os.environ, resolved)
    # Before the workspaces are opened: that may finish a write, which is logged.
    log = configure_logging(settings.log_format, settings.log_level)
    history = make_history(settings, models)
    workspaces = open_workspaces(
        settings.root, settings.allow_root, models, progress, watch=settings.watch, history=history
    )
    if settings.replicas is None and settings.cluster is None:
        merging, options = MergeOptions(settings.deadline, settings.reuse), make_service_options(settings)
        slot = make_model_slot(settings.model, models, options, progress, merging, workspaces)
    else:
        slot = make_replica_slot(settings, models, progress, workspaces)
    traces = make_tracer_provider(os.environ, asked=settings.traces)
    concurrent = settings.concurrent_requests
    if concurrent is None and tokens is not None:
        concurrent = MAX_CONCURRENT
    limits = TenantLimits(settings.requests_per_minute, concurrent, settings.tokens_per_minute)
    parts = build_service(slot, workspaces, limits=limits, traces=traces, deadline_s=settings.deadline)
    faults: list[HunkError] = []
    with listen(settings.host, settings.port) as listener, ExitStack() as announced:
        say = LineProgress(console).report

        def on_fault(fault: HunkError) -> None:
            faults.append(fault)
            server.should_exit = True

        def on_loaded() -> None:
            if slot.name != NO_MODEL:
                say(f"{slot.name} is ready")
            notify_systemd("READY=1", os.environ)

        def on_start() -> None:
            what = "merging by rules only" if slot.name == NO_MODEL else f"loading {slot.name}"
            say(f"listening on {format_url(listener)}, {what}")
            roots = [root for root in (settings.root, *settings.allow_root) if root is not None]
            token = None if tokens is None else tokens.make_own_token()
            announced.enter_context(announce(_format_own_url(listener), slot.name, roots, token))
            slot.load_in_background(on_loaded, on_fault)

        app = build_app(parts, hosts=[settings.host, *settings.allow_host], tokens=tokens, on_start=on_start)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=ANSWER_SECONDS,
            **make_connection_settings(settings.max_connections),
        )
        server = DrainingServer(
            config, parts.drain, settings.drain, slot.close, log.finish, lambda: slot.has_broken_down
        )
        server.run(sockets=[listener])
    if traces is not None:
        traces.shutdown()
    log.finish()
    if faults:
        raise faults[0]
    if slot.has_broken_down:
        slot.get_loaded()  # raises the reason
    exit_process(server.exit_code)


HTTP_PORT = 8312


@add_settings("mcp")
def mcp_command(
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP at /mcp, instead of standard input and output.")
    ] = False,
    host: Annotated[str, typer.Option("--host", help="With --http: address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="With --http: port to listen on; 0 takes a free one.")
    ] = HTTP_PORT,
    workspace: Annotated[
        str | None,
        typer.Option("--workspace", metavar="NAME", help="Workspace of the service of --url, without --root."),
    ] = None,
    min_certainty: Annotated[
        Certainty,
        typer.Option(
            "--min-certainty",
            help="Refuse merges that are less certain, the most certain first; `model` lets a model decide.",
        ),
    ] = WRITE_CERTAINTY,
    *,
    resolved: ResolvedSettings,
) -> None:
    """Let agents read and edit files through the Model Context Protocol: edit_file, read_file, workspace_status.

    With --root the files are in that folder, and merged in this process or, with --url, by a service; with --url alone
    they are in a workspace of the service. An agent starts this command and uses its standard input and output; with
    --http it listens until Ctrl-C.
    """
    from agent_runtime.mcp.server import serve_http, serve_stdio  # takes a second to import
    from agent_runtime.mcp.tools import build_server
    from agent_runtime.server.uvicorn_server import exit_process

    console = Console(stderr=True, highlight=False)
    settings = resolved.values
    tokens = None if settings.tokens is None else LiveTokens(TokenFile(settings.tokens))
    if http and tokens is None:
        check_loopback(host)
    backend = _open_backend(resolved, workspace, min_certainty, LineProgress(console), http=http)
    server = build_server(backend)
    code = 0
    try:
        if http:
            with listen(host, port) as listener:
                LineProgress(console).report(f"listening on {format_url(listener)}/mcp")
                serve_http(server, listener, hosts=[host, *settings.allow_host], tokens=tokens)
        else:
            # A thread that reads the input cannot be interrupted, and an ordinary exit would wait for it.
            signal.signal(signal.SIGINT, lambda *_: exit_process(INTERRUPTED))
            serve_stdio(server)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        backend.close()
    exit_process(code)


def _open_backend(
    resolved: ResolvedSettings, workspace: str | None, min_certainty: Certainty, progress: LineProgress, *, http: bool
) -> Backend:
    """Open the backend; over HTTP several agents share it, so that large edits run in a process of their own."""
    settings = resolved.values
    resolve_reuse_mode(settings.reuse, "exact")
    if settings.root is None and not settings.url:
        raise BadRequest("name a folder with --root DIR, or a service that has one with --url URL", field="root")
    if workspace is not None and (settings.root is not None or not settings.url):
        raise BadRequest("--workspace needs --url, and no --root", field="workspace")
    from agent_runtime.apply.rule_process import RULE_SECONDS, RuleProcesses
    from agent_runtime.llm.interface import ModelOnDemand
    from agent_runtime.mcp.backends import LocalBackend, make_local_applier, make_remote_applier
    from agent_runtime.types import Options

    # A service uses its own reuse mode unless the command line names one.
    reuse = settings.reuse if resolved.has_flag("reuse") or not settings.url else None
    options = Options(reuse=reuse, min_certainty=min_certainty)
    models = make_model_settings(os.environ, resolved)
    journals, history = models.cache_dir / "journals", make_history(settings, models)
    if settings.url:
        from agent_runtime.mcp.backends import RemoteBackend
        from agent_runtime.workspace.registry import DEFAULT

        client = open_client(resolved)
        if settings.root is None:
            return RemoteBackend(client, settings.url, workspace or DEFAULT, options=options)
        return LocalBackend(
            settings.root,
            make_remote_applier(client, settings.url),
            options=options,
            journals=journals,
            history=history,
        )

    def load() -> Merger:
        from agent_runtime.wiring import open_merger

        return open_merger(settings.model, models, make_service_options(settings), progress)

    assert settings.root is not None
    model = ModelOnDemand(settings.model, load)
    merging = make_local_applier(model, RuleProcesses(RULE_SECONDS) if http else None)
    return LocalBackend(settings.root, merging, options=options, journals=journals, history=history)


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


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket; raises BadRequest where the address is not available."""
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


def _format_own_url(listener: socket.socket) -> str:
    """Format the address at which this machine reaches a socket, which may listen on all addresses."""
    name = listener.getsockname()[0]
    return format_url(listener).replace(name, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(name, name))


def format_url(listener: socket.socket) -> str:
    """Format the address of a socket, such as http://127.0.0.1:8311."""
    name, number = listener.getsockname()[:2]
    return f"http://[{name}]:{number}" if ":" in name else f"http://{name}:{number}"
