"""Explicit edits whose quoted text stands in several places of the file, or nowhere; they must be refused.

    cut      the edit quotes one or two lines near a real change that also stand elsewhere in the file
    doubled  the definition around a real change stands twice in the file, the second time under another name
    missing  the edit quotes a line with one token altered, so that it stands nowhere

Each edit is sent in this process through each of the six interfaces of Hunk, with default options and with a model that
counts how often it is asked."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
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
from agent_runtime.llm.interface import ChatModel, Merger, ModelMerge, ModelOnDemand, ModelTask
from agent_runtime.mcp.backends import LocalBackend, make_local_applier
from agent_runtime.mcp.tools import build_server
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.app import build_app
from agent_runtime.server.service import Service
from agent_runtime.types import ApplyRequest, Usage
from agent_runtime.workspace.registry import WorkspaceRegistry
from benchmarks import edit_formats as rendering
from benchmarks.cases import Case
from benchmarks.trust.corruptions import RightText, alter_token
from benchmarks.trust.planted import WholeAnswer
from editor.definitions import Symbol
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import FormatName, Unresolved

DOORS = ("http", "sdk", "cli", "mcp", "v1", "page")


class Guesser(WholeAnswer):
    """A model that takes the first candidate, and counts how often it is loaded or asked."""

    name = "guesser"

    def __init__(self) -> None:
        super().__init__("")
        self._lock = threading.Lock()

    def load(self, *_: Any) -> Merger:
        """Count a load, whatever the models and settings."""
        self._count()
        return self

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """Return the first reading, or the file where there is none."""
        self._count()
        candidates = task.by_rule.candidates if isinstance(task.by_rule, Unresolved) else ()
        return ModelMerge(candidates[0].text if candidates else task.text, False, Usage(), {})

    def chat(self) -> ChatModel:
        """Count the call, and fail: no edit needs a chat."""
        self._count()
        raise NotImplementedError

    def _count(self) -> None:
        with self._lock:
            self.num_calls += 1


class Doors:
    """All interfaces, open until `close`. Each applies a case and returns the file's bytes, None if it is refused.

    `cli` and `mcp` write the file.
    """

    def __init__(self) -> None:
        self.model = Guesser()
        self._open = ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HUNK_")}
        environment |= {"HUNK_CONFIG": "", "HUNK_CACHE": str(self._folder / "cache")}
        self._open.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        # The command line and the local client load a model themselves.
        self._open.enter_context(mock.patch("agent_runtime.wiring.open_merger", self.model.load))
        slot = mock.Mock(load=self.model.load)
        self._open.enter_context(mock.patch("agent_runtime.wiring.make_model_slot", return_value=slot))
        on_demand = ModelOnDemand(self.model.name, self.model.load)
        service = Service(Applier(on_demand.get), on_demand, WorkspaceRegistry(None))
        self._http = self._open.enter_context(
            httpx.Client(transport=InProcessTransport(build_app(service)), base_url="http://localhost")
        )
        self._sdk = self._open.enter_context(LocalClient(model=self.model.name, watch=False))
        place = LocalBackend(self._folder, make_local_applier(ModelOnDemand(self.model.name, self.model.load)))
        self._portal = self._open.enter_context(start_blocking_portal())
        self._mcp = self._open.enter_context(self._portal.wrap_async_context_manager(McpClient(build_server(place))))
        self.ways: Mapping[str, Callable[[Case], bytes | None]] = {
            "http": self._send_http,
            "sdk": self._send_sdk,
            "cli": self._send_cli,
            "mcp": self._send_mcp,
            "v1": self._send_v1,
            "page": self._send_page,
        }

    def close(self) -> None:
        self._open.close()

    def _send_http(self, case: Case) -> bytes | None:
        answer = self._http.post("/apply", json=_make_body(case), timeout=None)
        return _read_merged(answer.json()) if answer.is_success else None

    def _send_sdk(self, case: Case) -> bytes | None:
        try:
            result = self._sdk.apply(ApplyRequest(case.original.encode(), case.edit, case.path))
        except HunkError:
            return None
        return None if result.status == "rejected" else result.file.data

    def _send_cli(self, case: Case) -> bytes | None:
        file, edit = self._write_file(case), self._folder / "edit.txt"
        edit.write_bytes(case.edit.encode())
        CliRunner().invoke(command_line, ["apply", str(file), "--edit", str(edit), "--write"])
        return _read_changed(file, case)

    def _send_mcp(self, case: Case) -> bytes | None:
        file = self._write_file(case)
        arguments = {"path": case.path, "instruction": case.instruction, "edit": case.edit}
        self._portal.call(self._mcp.call_tool, "edit_file", arguments)
        return _read_changed(file, case)

    def _send_v1(self, case: Case) -> bytes | None:
        text = f"<code>{case.original}</code>\n<update>{case.edit}</update>"
        body = {"model": "morph-v3-fast", "messages": [{"role": "user", "content": text}]}
        answer = self._http.post("/v1/chat/completions", json=body, timeout=None)
        if not answer.is_success:
            return None
        content: str = answer.json()["choices"][0]["message"]["content"]
        return content.encode()

    def _send_page(self, case: Case) -> bytes | None:
        """Ask as `page/api.js` does."""
        headers = {"accept": "text/event-stream"}
        with self._http.stream("POST", "/apply", json=_make_body(case) | {"stream": True}, headers=headers) as answer:
            if not answer.is_success:
                return None
            for event in EventSource(answer).iter_sse():
                if event.event == "result":
                    return _read_merged(json.loads(event.data))
        return None

    def _write_file(self, case: Case) -> Path:
        file = self._folder / case.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(case.original.encode())
        return file


def _make_body(case: Case) -> dict[str, str]:
    return {"original": case.original, "edit": case.edit, "path": case.path}


def _read_merged(answer: dict[str, Any]) -> bytes | None:
    text: str = answer["merged"]
    return None if answer["status"] == "rejected" else text.encode()


def _read_changed(file: Path, case: Case) -> bytes | None:
    """Return the file's bytes; None if they are unchanged, as after a refused edit."""
    data = file.read_bytes()
    return data if data != case.original.encode() else None


NUM_EDITS = 120
_FORMATS: tuple[FormatName, ...] = ("search_replace", "replace", "udiff", "v4a")
_REACH = 12
_MAX_DOUBLED = 80


@dataclass(frozen=True, slots=True)
class Sending:
    """One ambiguous edit sent through one interface: whether it changed the file, and how often the model was asked."""

    id: str
    format: str
    style: str
    door: str
    guessed: bool
    model_calls: int
    crashed: str = ""


def send_all(cases: Sequence[Case]) -> Iterator[Sending]:
    """Send each case through each interface."""
    doors = Doors()
    try:
        for case in cases:
            for door in DOORS:
                before = doors.model.num_calls
                crashed, after = "", None
                try:
                    after = doors.ways[door](case)
                except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
                    crashed = repr(fault)
                guessed = after is not None and after != case.original.encode()
                asked = doors.model.num_calls - before
                yield Sending(case.id, case.format, case.style, door, guessed, asked, crashed)
    finally:
        doors.close()


def make_ambiguous_edits(cases: Sequence[Case], num_edits: int, seed: int) -> list[Case]:
    """Make ambiguous edits from right results; styles and explicit formats take turns."""
    rng = Random(f"ambiguous\0{seed}")
    found = list(cases)
    rng.shuffle(found)
    made: list[Case] = []
    for case in found:
        if len(made) >= num_edits:
            break
        right = RightText(case)
        parts = _STYLES[len(made) % len(_STYLES)](right, rng)
        format_name = _FORMATS[len(made) // len(_STYLES) % len(_FORMATS)]
        if parts is not None and "\r" not in case.original:
            made.append(_write_case(case, parts, format_name))
    return made


@dataclass(frozen=True, slots=True)
class _Parts:
    """A file, the quoted lines, and the lines that an edit would put in their place."""

    style: str
    original: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def _make_cut(right: RightText, rng: Random) -> _Parts | None:
    """Quote one or two lines near a change that stand twice, and alter them."""
    near = {at for span in right.spans for at in range(span.a_start - _REACH, span.a_end + _REACH)}
    windows = [
        right.a[at : at + size]
        for at in sorted(near)
        for size in (1, 2)
        if 0 <= at <= len(right.a) - size and all(map(str.strip, right.a[at : at + size]))
    ]
    windows = [window for window in windows if any(char.isalnum() for line in window for char in line)]
    windows = [window for window in windows if rendering.count(right.a, window) > 1]
    if not windows:
        return None
    before = tuple(rng.choice(windows))
    return _Parts("cut", right.source.text, before, _change_lines(before, rng))


def _make_doubled(right: RightText, rng: Random) -> _Parts | None:
    """Copy the definition around a change under another name, and quote a line of its body."""
    symbols = found.symbols if (found := survey(right.source.text, find_language(right.case.path))) else ()
    around = [
        symbol
        for span in right.spans
        for symbol in symbols
        if symbol.kind in ("function", "method")
        and symbol.first_line <= span.a_start < symbol.end_line <= symbol.first_line + _MAX_DOUBLED
    ]
    bodies = [(symbol, at) for symbol in around for at in _list_body(symbol, right.a)]
    if not bodies:
        return None
    symbol, at = rng.choice(bodies)
    own = right.a[symbol.first_line : symbol.end_line]
    name_at = symbol.name_line - symbol.first_line
    twin = [
        *own[:name_at],
        own[name_at].replace(symbol.simple_name, f"{symbol.simple_name}_again", 1),
        *own[name_at + 1 :],
    ]
    if twin == own:
        return None
    lines = [*right.a[: symbol.end_line], "", *twin, *right.a[symbol.end_line :]]
    before = (right.a[at],)
    return _Parts("doubled", "\n".join(lines), before, _change_lines(before, rng))


def _make_missing(right: RightText, rng: Random) -> _Parts | None:
    """Quote a line near a change with another token."""
    near = {at for span in right.spans for at in range(span.a_start - _REACH, span.a_end + _REACH)}
    found = [at for at in sorted(near) if 0 <= at < len(right.a) and any(map(str.isalnum, right.a[at]))]
    if not found:
        return None
    line = alter_token(right.a[rng.choice(found)], right, rng)
    if line.strip() in right.source.text:
        return None
    return _Parts("missing", right.source.text, (line,), _change_lines((line,), rng))


def _list_body(symbol: Symbol, lines: Sequence[str]) -> Iterator[int]:
    """Yield the lines of a definition below its head that hold a word."""
    start = max(symbol.name_line + 1, symbol.body_line or 0)
    for at in range(start, symbol.end_line):
        if any(char.isalnum() for char in lines[at]):
            yield at


def _change_lines(before: Sequence[str], rng: Random) -> tuple[str, ...]:
    """Return the lines with one more, or with another last one."""
    indent = before[-1][: len(before[-1]) - len(before[-1].lstrip())]
    new = f"{indent}ambiguous_{rng.randrange(1000)}()"
    return (*before, new) if rng.random() < 0.5 else (*before[:-1], new)


def _write_case(case: Case, parts: _Parts, format_name: FormatName) -> Case:
    old, new = ("".join(line + "\n" for line in lines) for lines in (parts.before, parts.after))
    kept = 0
    while kept < min(len(parts.before), len(parts.after)) and parts.before[kept] == parts.after[kept]:
        kept += 1
    hunk = [" " + line for line in parts.before[:kept]]
    hunk += ["-" + line for line in parts.before[kept:]] + ["+" + line for line in parts.after[kept:]]
    edits = {
        "search_replace": rendering.render_blocks([(old, new)]),
        "replace": rendering.render_replacement(old, new),
        "udiff": "\n".join([f"--- a/{case.path}", f"+++ b/{case.path}", "@@ @@", *hunk, ""]),
        "v4a": "\n".join(["*** Begin Patch", f"*** Update File: {case.path}", "@@", *hunk, "*** End Patch", ""]),
    }
    return replace(
        case,
        format=format_name,
        style=parts.style,
        original=parts.original,
        edit=edits[format_name],
        expected=parts.original,
        expects="refusal",
        instruction="",
    )


_STYLES = (_make_cut, _make_doubled, _make_missing)
