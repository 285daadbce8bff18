"""`hunk serve`: runs the HTTP service."""

from __future__ import annotations

import os

import uvicorn
from rich.console import Console

from agent_runtime.access import check_loopback
from agent_runtime.cli.options import add_settings, format_url, listen
from agent_runtime.config import ResolvedSettings
from agent_runtime.config.options import model_settings, service_options
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import resolve_reuse_mode
from agent_runtime.models.config import MergeOptions
from agent_runtime.models.progress import LineProgress, make_progress
from agent_runtime.quotas import TenantLimits
from agent_runtime.server.token_file import LiveTokens, TokenFile
from agent_runtime.telemetry.log import configure
from agent_runtime.telemetry.systemd import tell_systemd

MAX_CONCURRENT = 256
"""Requests of one tenant at the same time, where there are tokens; a quarter of what the service takes."""


@add_settings("serve")
def serve_command(resolved: ResolvedSettings) -> None:
    """Serve POST /apply until Ctrl-C or SIGTERM, after which running requests may finish.

    Every option may also be set in a file or in the environment: see `hunk config`.
    """
    settings = resolved.values
    resolve_reuse_mode(settings.reuse, "exact")
    tokens = None if settings.tokens is None else LiveTokens(TokenFile(settings.tokens))
    if tokens is None:
        check_loopback(settings.host)
    from agent_runtime.server.app import build_app  # slow imports that `hunk --help` does not need
    from agent_runtime.server.uvicorn_server import ANSWER_SECONDS, DrainingServer, connection_settings, leave
    from agent_runtime.telemetry.traces import tracer_provider
    from agent_runtime.wiring import model_slot, open_workspaces, service

    console = Console(stderr=True, highlight=False)
    progress, models = make_progress(console), model_settings(os.environ, resolved)
    # Before the workspaces are opened: that may finish a write, which is logged.
    log = configure(settings.log_format, settings.log_level)
    workspaces = open_workspaces(settings.root, settings.allow_root, models, progress, watch=settings.watch)
    merging = MergeOptions(settings.deadline, settings.reuse)
    slot = model_slot(settings.model, models, service_options(settings), progress, merging, workspaces)
    traces = tracer_provider(os.environ, asked=settings.traces)
    concurrent = settings.concurrent_requests
    if concurrent is None and tokens is not None:
        concurrent = MAX_CONCURRENT
    limits = TenantLimits(settings.requests_per_minute, concurrent, settings.tokens_per_minute)
    parts = service(slot, workspaces, limits=limits, traces=traces, deadline_s=settings.deadline)
    faults: list[HunkError] = []
    with listen(settings.host, settings.port) as listener:
        say = LineProgress(console).report

        def on_fault(fault: HunkError) -> None:
            faults.append(fault)
            server.should_exit = True

        def on_loaded() -> None:
            say(f"{slot.name} is ready")
            tell_systemd("READY=1", os.environ)

        def on_start() -> None:
            say(f"listening on {format_url(listener)}, loading {slot.name}")
            slot.load_in_background(on_loaded, on_fault)

        app = build_app(parts, hosts=[settings.host, *settings.allow_host], tokens=tokens, on_start=on_start)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=ANSWER_SECONDS,
            **connection_settings(settings.max_connections),
        )
        server = DrainingServer(config, parts.drain, settings.drain, slot.close, log.finish)
        server.run(sockets=[listener])
    if traces is not None:
        traces.shutdown()
    log.finish()
    if faults:
        raise faults[0]
    leave(server.exit_code)
