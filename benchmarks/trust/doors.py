"""The six ways in which an edit reaches Hunk, in this process, with a model that counts how often it is asked."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx
from anyio.from_thread import start_blocking_portal
from httpx_sse import EventSource
from mcp.client import Client as McpClient
from typer.testing import CliRunner

from agent_runtime.apply.pipeline import Applier
from agent_runtime.cli.main import app as command_line
from agent_runtime.client.local import InProcessTransport, LocalClient
from agent_runtime.errors import HunkError
from agent_runtime.llm.interface import ChatModel, Merger, ModelChoice, ModelMerge, ModelTask
from agent_runtime.llm.model_slot import ModelOnDemand
from agent_runtime.mcp.backends import LazyModel, LocalBackend, make_local_applier
from agent_runtime.mcp.tools import build_server
from agent_runtime.progress import Watcher
from agent_runtime.server.app import build_app
from agent_runtime.server.dependencies import Service
from agent_runtime.types import ApplyRequest, Usage
from agent_runtime.workspace.registry import WorkspaceRegistry
from benchmarks.cases import Case
from editor.types import Unresolved

if TYPE_CHECKING:
    from engine.engine import EngineStats

DOORS = ("http", "sdk", "cli", "mcp", "v1", "page")


class Guesser:
    """A model that takes the first place that came into question, and counts: each load, each question."""

    name = "guesser"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.num_calls = 0

    def load(self, *_: Any) -> Merger:
        """Count a load, whatever it is told of models and settings."""
        self._count()
        return self

    def merge(self, task: ModelTask, watcher: Watcher) -> ModelMerge:
        """Return the first reading, or the file where there is none."""
        self._count()
        candidates = task.by_rule.candidates if isinstance(task.by_rule, Unresolved) else ()
        return ModelMerge(candidates[0].text if candidates else task.text, False, Usage(), {})

    def choose(self, task: ModelTask, watcher: Watcher) -> ModelChoice | ModelMerge:
        """Take the first reading."""
        return self.merge(task, watcher)

    def chat(self) -> ChatModel:
        """Count a question that is no edit, and break down: there is no answer."""
        self._count()
        raise NotImplementedError

    def stats(self) -> EngineStats | None:
        """There is no engine."""
        return None

    def close(self) -> None:
        """Free nothing."""

    def _count(self) -> None:
        with self._lock:
            self.num_calls += 1


class Doors:
    """All doors, open until `close`. Each takes a case and gives the file's bytes after it, None where it is refused.

    The file is written where a door writes files (`cli`, `mcp`).
    """

    def __init__(self) -> None:
        self.model = Guesser()
        self._open = ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HUNK_")}
        environment |= {"HUNK_CONFIG": "", "HUNK_CACHE": str(self._folder / "cache")}
        self._open.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        # What loads a model where none was handed over: the command line, and the client of this process.
        self._open.enter_context(mock.patch("agent_runtime.wiring.open_merger", self.model.load))
        slot = mock.Mock(load=self.model.load)
        self._open.enter_context(mock.patch("agent_runtime.wiring.model_slot", return_value=slot))
        on_demand = ModelOnDemand(self.model.name, self.model.load)
        service = Service(Applier(on_demand.get), on_demand, WorkspaceRegistry(None))
        self._http = self._open.enter_context(
            httpx.Client(transport=InProcessTransport(build_app(service)), base_url="http://localhost")
        )
        self._sdk = self._open.enter_context(LocalClient(model=self.model.name, watch=False))
        place = LocalBackend(self._folder, make_local_applier(LazyModel(self.model.name, self.model.load)))
        self._portal = self._open.enter_context(start_blocking_portal())
        self._mcp = self._open.enter_context(self._portal.wrap_async_context_manager(McpClient(build_server(place))))
        self.ways: Mapping[str, Callable[[Case], bytes | None]] = {
            "http": self._over_http,
            "sdk": self._by_sdk,
            "cli": self._by_cli,
            "mcp": self._over_mcp,
            "v1": self._over_v1,
            "page": self._by_page,
        }

    def close(self) -> None:
        """Close all."""
        self._open.close()

    def _over_http(self, case: Case) -> bytes | None:
        answer = self._http.post("/apply", json=_body(case), timeout=None)
        return _after(answer.json()) if answer.is_success else None

    def _by_sdk(self, case: Case) -> bytes | None:
        try:
            result = self._sdk.apply(ApplyRequest(case.original.encode(), case.edit, case.path))
        except HunkError:
            return None
        return None if result.status == "rejected" else result.file.data

    def _by_cli(self, case: Case) -> bytes | None:
        file, edit = self._written(case), self._folder / "edit.txt"
        edit.write_bytes(case.edit.encode())
        CliRunner().invoke(command_line, ["apply", str(file), "--edit", str(edit), "--write"])
        return _if_changed(file, case)

    def _over_mcp(self, case: Case) -> bytes | None:
        file = self._written(case)
        arguments = {"path": case.path, "instruction": case.instruction, "edit": case.edit}
        self._portal.call(self._mcp.call_tool, "edit_file", arguments)
        return _if_changed(file, case)

    def _over_v1(self, case: Case) -> bytes | None:
        text = f"<code>{case.original}</code>\n<update>{case.edit}</update>"
        body = {"model": "morph-v3-fast", "messages": [{"role": "user", "content": text}]}
        answer = self._http.post("/v1/chat/completions", json=body, timeout=None)
        if not answer.is_success:
            return None
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content.encode()

    def _by_page(self, case: Case) -> bytes | None:
        """Ask as `page/api.js` does."""
        headers = {"accept": "text/event-stream"}
        with self._http.stream("POST", "/apply", json=_body(case) | {"stream": True}, headers=headers) as answer:
            if not answer.is_success:
                return None
            for event in EventSource(answer).iter_sse():
                if event.event == "result":
                    return _after(json.loads(event.data))
        return None

    def _written(self, case: Case) -> Path:
        file = self._folder / case.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(case.original.encode())
        return file


def _body(case: Case) -> dict[str, str]:
    return {"original": case.original, "edit": case.edit, "path": case.path}


def _after(answer: dict[str, Any]) -> bytes | None:
    text: str = answer["merged"]
    return None if answer["status"] == "rejected" else text.encode()


def _if_changed(file: Path, case: Case) -> bytes | None:
    """Return the file's bytes; None where they are what they were, as of an edit that is refused."""
    data = file.read_bytes()
    return data if data != case.original.encode() else None
