"""The service in this process, guarded as by `hunk serve`: tokens, workspaces, limits of connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from agent_runtime.apply.pipeline import Applier
from agent_runtime.llm.interface import Merger, ModelSlot
from agent_runtime.request_context import AccessScope
from agent_runtime.server.app import build_app
from agent_runtime.server.service import Service
from agent_runtime.server.token_file import LiveTokens, TokenFile, make_token
from agent_runtime.server.uvicorn_server import make_connection_settings
from agent_runtime.workspace.registry import WorkspaceRegistry
from tests.agent_runtime.scripted import ScriptedMerger


@dataclass(frozen=True, slots=True)
class Guarded:
    """A running service, and the texts of its tokens by name."""

    url: str
    tokens: Mapping[str, str]
    file: TokenFile
    client: httpx.Client

    def ask(self, method: str, path: str, token: str | None = None, **options: Any) -> httpx.Response:
        """One request, with the token of that name."""
        headers = dict(options.pop("headers", {}))
        if token is not None:
            headers["authorization"] = f"Bearer {self.tokens[token]}"
        return self.client.request(method, f"{self.url}{path}", headers=headers, **options)

    @property
    def address(self) -> tuple[str, int]:
        """For a socket."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return host, int(port)


def make_tokens(path: Path, wanted: Mapping[str, tuple[str, tuple[AccessScope, ...]]]) -> dict[str, str]:
    """A token file with these, by name a tenant and scopes; their texts."""
    texts = {}
    for name, (tenant, scopes) in wanted.items():
        token, texts[name] = make_token(name, tenant, frozenset(scopes), datetime.now(UTC))
        TokenFile(path).change(lambda known, token=token: known.add_token(token))  # type: ignore[misc]
    return texts


@contextlib.contextmanager
def guarded(
    folder: Path,
    root: Path | None = None,
    wanted: Mapping[str, tuple[str, tuple[AccessScope, ...]]] | None = None,
    merger: Merger | None = None,
    **connection: Any,
) -> Iterator[Guarded]:
    """A service that asks for tokens if there are any; `connection` are attributes of `TimeoutH11Protocol`."""
    file = TokenFile(folder / "tokens.json")
    texts = make_tokens(file.path, wanted or {})
    slot = ModelSlot("scripted", lambda: merger or ScriptedMerger())
    loaded = threading.Event()
    slot.load_in_background(loaded.set, lambda _: loaded.set())
    loaded.wait()
    workspaces = WorkspaceRegistry(root, allowed=[folder], watch=False, journals=folder / "journals")
    app = build_app(Service(Applier(slot.get), slot, workspaces), tokens=LiveTokens(file) if wanted else None)
    settings = make_connection_settings()
    settings["http"] = type("Connection", (settings["http"],), connection)
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2, **settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            one_request = httpx.Limits(max_keepalive_connections=0)  # connections are what is tested
            with httpx.Client(timeout=30, limits=one_request) as client:
                yield Guarded(f"http://127.0.0.1:{listener.getsockname()[1]}", texts, file, client)
        finally:
            server.should_exit = True
            thread.join()
