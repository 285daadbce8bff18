"""How the MCP server is reached: over stdio with nothing else on the output, over HTTP by its own names only."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import httpx
import pytest

from agent_runtime.access.principal import AccessScope
from agent_runtime.access.token_file import LiveTokens, TokenFile
from agent_runtime.access.tokens import new_token
from agent_runtime.errors import BadRequest
from agent_runtime.mcp.folder import FolderPlace, LazyModel, merging_here
from tests.agent_runtime.in_process import hunk_here
from tests.agent_runtime.mcp.agents import HUNK, over_stdio, served
from tests.agent_runtime.scripted import ScriptedMerger

DOC = (Path(__file__).resolve().parents[3] / "docs" / "mcp.md").read_text(encoding="utf-8")
BEGIN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def test_an_agent_edits_over_stdio(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a = 1\nb = 2\n")

    async def run() -> None:
        async with over_stdio("--root", tmp_path) as session:
            assert {tool.name for tool in (await session.list_tools()).tools} == {
                "edit_file",
                "read_file",
                "workspace_status",
            }
            edit = {"path": "a.py", "instruction": "", "edit": "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE"}
            assert not (await session.call_tool("edit_file", edit)).is_error
            assert (tmp_path / "a.py").read_text() == "a = 3\nb = 2\n"
            assert (await session.call_tool("read_file", {"path": "../a.py"})).is_error

    anyio.run(run)


def test_the_output_holds_nothing_but_the_protocol(tmp_path: Path) -> None:
    asked = b"this is no JSON\n" + json.dumps(BEGIN).encode() + b"\n"
    done = subprocess.run([HUNK, "mcp", "--root", tmp_path], input=asked, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in lines)
    assert b"Traceback" not in done.stderr


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    command = [HUNK, "mcp", "--root", tmp_path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(BEGIN).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()  # it is up
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(FolderPlace(tmp_path, merging_here(LazyModel("scripted", ScriptedMerger)))) as url:
        yield url


def test_its_own_names_are_answered_and_others_refused(url: str) -> None:
    port = httpx.URL(url).port

    def status(**headers: str) -> int:
        return httpx.post(url, json=BEGIN, headers={**ACCEPT, **headers}).status_code

    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
        assert status(Host=host) == 200
        assert status(Host=host, Origin=f"http://{host}") == 200
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{(port or 0) ^ 1}", ""):
        assert status(Host=host) >= 400
    for origin in ("http://evil.example", "null", f"http://127.0.0.1.evil.example:{port}", "http://localhost:1"):
        assert status(Origin=origin) >= 400


def test_a_body_that_is_too_large_or_no_request_is_refused(url: str) -> None:
    assert httpx.post(url, content=b"x" * (17 << 20), headers={**ACCEPT, "Content-Type": "application/json"}).is_error
    for content in (b"", b"{", b"[]", b"null", b'{"jsonrpc": "2.0"}', b"[" * 100_000):
        answer = httpx.post(url, content=content, headers={**ACCEPT, "Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", ""])
def test_without_tokens_it_listens_on_this_machine_only(tmp_path: Path, host: str) -> None:
    fault = hunk_here("mcp", "--root", tmp_path, "--http", "--host", host).exception
    assert isinstance(fault, BadRequest)
    assert "127.0.0.1" in str(fault)


def test_with_tokens_each_request_needs_one_that_may_read_and_apply(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    scopes: dict[str, set[AccessScope]] = {"agent": {"apply", "read"}, "reader": {"read"}, "admin": {"admin"}}
    made = {name: new_token(name, name, frozenset(allowed), now) for name, allowed in scopes.items()}
    file = TokenFile(tmp_path / "tokens.json")
    for token, _ in made.values():
        file.change(lambda known, token=token: known.with_token(token))  # type: ignore[misc]
    folder = FolderPlace(tmp_path, merging_here(LazyModel("scripted", ScriptedMerger)))
    with served(folder, LiveTokens(file)) as url:

        def status(**headers: str) -> int:
            return httpx.post(url, json=BEGIN, headers={**ACCEPT, **headers}).status_code

        allowed = {name: status(Authorization=f"Bearer {text}") for name, (_, text) in made.items()}
        assert allowed == {"agent": 200, "reader": 403, "admin": 200}
        assert (status(), status(Authorization="Bearer hunk_nonsense")) == (401, 401)
        assert status(Authorization=f"Bearer {made['agent'][1]}", Host="evil.example") >= 400


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--root DIR"),
        (["--root", "nonexistent"], "not a folder"),
        (["--root", ".", "--workspace", "shop"], "--workspace"),
        (["--root", ".", "--reuse", "balanced"], "balanced"),
        (["--url", "nonsense"], "nonsense"),
    ],
)
def test_bad_usage_is_told_before_anything_is_served(arguments: list[str], word: str) -> None:
    fault = hunk_here("mcp", *arguments).exception
    assert isinstance(fault, BadRequest), fault
    assert word in str(fault)


def test_the_page_shows_configurations_that_start_this_command() -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)]
    servers = [next(iter(next(iter(block.values())).values())) for block in blocks]
    started = [server for server in servers if "command" in server]
    assert len(started) == 3
    for server in started:
        assert (server["command"], server["args"][0]) == ("hunk", "mcp")
    shown = hunk_here("mcp", "--help").stdout
    assert all(option in shown for option in re.findall(r"hunk mcp .*?(--\w+)", DOC))
    assert [server["url"] for server in servers if "url" in server] == ["http://127.0.0.1:8312/mcp"]
