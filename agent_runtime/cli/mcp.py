"""`hunk mcp`: an MCP server for agents that read and edit the files of one folder."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agent_runtime.access import check_loopback
from agent_runtime.cli.options import INTERRUPTED, add_settings, format_url, listen, open_client
from agent_runtime.config import ResolvedSettings
from agent_runtime.config.options import model_settings, service_options
from agent_runtime.errors import BadRequest
from agent_runtime.llm.interface import resolve_reuse_mode
from agent_runtime.models.progress import LineProgress
from agent_runtime.server.token_file import LiveTokens, TokenFile
from agent_runtime.types import WRITE_CERTAINTY, Certainty

if TYPE_CHECKING:
    from agent_runtime.llm.interface import Merger
    from agent_runtime.mcp.backends import Backend

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
    from agent_runtime.server.uvicorn_server import leave

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
            signal.signal(signal.SIGINT, lambda *_: leave(INTERRUPTED))
            serve_stdio(server)
    except KeyboardInterrupt:
        code = INTERRUPTED
    finally:
        backend.close()
    leave(code)


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
    models = model_settings(os.environ, resolved)
    journals = models.cache_dir / "journals"
    if settings.url:
        from agent_runtime.mcp.backends import RemoteBackend
        from agent_runtime.workspace.registry import DEFAULT

        client = open_client(resolved)
        if settings.root is None:
            return RemoteBackend(client, settings.url, workspace or DEFAULT, options=options)
        return LocalBackend(
            settings.root, make_remote_applier(client, settings.url), options=options, journals=journals
        )

    def load() -> Merger:
        from agent_runtime.wiring import open_merger

        return open_merger(settings.model, models, service_options(settings), progress)

    assert settings.root is not None
    model = ModelOnDemand(settings.model, load)
    merging = make_local_applier(model, RuleProcesses(RULE_SECONDS) if http else None)
    return LocalBackend(settings.root, merging, options=options, journals=journals)
