"""The MCP server over stdio, with nothing else on the output, and over HTTP, by its own host names only."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from agent_runtime.errors import BadRequest
from agent_runtime.llm.interface import ModelOnDemand
from agent_runtime.mcp.backends import LocalBackend, make_local_applier
from agent_runtime.mcp.server import SessionLimit
from agent_runtime.request_context import AccessScope
from agent_runtime.server.request_body import BodyLimitMiddleware
from agent_runtime.server.token_file import LiveTokens, TokenFile, make_token
from tests.agent_runtime.mcp.agents import HUNK, over_stdio, served, text_of
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import hunk_here

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
                "edit_files",
                "read_file",
                "undo_edit",
                "workspace_status",
            }
            edit = {"path": "a.py", "instruction": "", "edit": "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE"}
            assert not (await session.call_tool("edit_file", edit)).is_error
            assert (tmp_path / "a.py").read_text() == "a = 3\nb = 2\n"
            assert (await session.call_tool("read_file", {"path": "../a.py"})).is_error
            refused = await session.call_tool("edit_file", {"path": "a.py", "edit": edit["edit"]})
            wanted = "edit_file needs the argument 'instruction': the purpose of the edit, in one sentence."
            assert (refused.is_error, text_of(refused)) == (True, wanted)
            assert (refused.meta, refused.structured_content) == (None, None), "a model would be given them"

    anyio.run(run)


def test_the_output_holds_nothing_but_the_protocol(tmp_path: Path) -> None:
    asked = b"this is no JSON\n" + json.dumps(BEGIN).encode() + b"\n"
    done = subprocess.run([HUNK, "mcp", "--root", tmp_path], input=asked, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in lines)
    assert b"Traceback" not in done.stderr


def test_a_line_without_an_end_ends_it_and_garbage_does_not(tmp_path: Path) -> None:
    garbage = b"\xff\xfe\0\n" + b"[" * 100_000 + b"\n" + json.dumps(BEGIN).encode() + b"\n"
    endless = b"x" * ((64 << 20) + (1 << 20))
    done = subprocess.run(
        [HUNK, "mcp", "--root", tmp_path], input=garbage + endless, capture_output=True, timeout=60, check=False
    )
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [1]
    assert done.returncode == 2, done.stderr
    assert b"a message of more than 64 MiB" in done.stderr
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
    with served(LocalBackend(tmp_path, make_local_applier(ModelOnDemand("scripted", ScriptedMerger)))) as url:
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
    made = {name: make_token(name, name, frozenset(allowed), now) for name, allowed in scopes.items()}
    file = TokenFile(tmp_path / "tokens.json")
    for token, _ in made.values():
        file.change(lambda known, token=token: known.add_token(token))  # type: ignore[misc]
    folder = LocalBackend(tmp_path, make_local_applier(ModelOnDemand("scripted", ScriptedMerger)))
    with served(folder, LiveTokens(file)) as url:

        def status(**headers: str) -> int:
            return httpx.post(url, json=BEGIN, headers={**ACCEPT, **headers}).status_code

        allowed = {name: status(Authorization=f"Bearer {text}") for name, (_, text) in made.items()}
        assert allowed == {"agent": 200, "reader": 403, "admin": 200}
        assert (status(), status(Authorization="Bearer hunk_nonsense")) == (401, 401)
        assert status(Authorization=f"Bearer {made['agent'][1]}", Host="evil.example") >= 400


def made(tmp_path: Path, *tenants: str) -> tuple[LiveTokens, dict[str, dict[str, str]]]:
    """Make a token for each tenant, and the headers of its requests."""
    file, headers = TokenFile(tmp_path / "tokens.json"), {}
    for tenant in tenants:
        token, text = make_token(tenant, tenant, frozenset({"apply", "read"}), datetime.now(UTC))
        file.change(lambda known, token=token: known.add_token(token))  # type: ignore[misc]
        headers[tenant] = {**ACCEPT, "Authorization": f"Bearer {text}"}
    return LiveTokens(file), headers


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(tmp_path, make_local_applier(ModelOnDemand("scripted", ScriptedMerger)))


CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


def test_a_session_is_its_tenants_who_began_it(tmp_path: Path, backend: LocalBackend) -> None:
    """Another tenant cannot use a session; its owner still can."""
    tokens, headers = made(tmp_path, "ann", "bob")
    with served(backend, tokens) as url:
        begun = {"mcp-session-id": httpx.post(url, json=BEGIN, headers=headers["ann"]).headers["mcp-session-id"]}

        def status(tenant: str, method: str) -> int:
            body = {"json": CALL} if method == "POST" else {}
            return httpx.request(method, url, headers=headers[tenant] | begun, **body).status_code  # type: ignore[arg-type]

        assert (status("bob", "POST"), status("bob", "DELETE")) == (404, 404)
        assert (status("ann", "POST"), status("ann", "DELETE"), status("ann", "POST")) == (200, 200, 404)


def test_one_tenant_cannot_take_the_sessions_of_all(
    tmp_path: Path, backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_runtime.mcp.server.SessionLimit", partial(SessionLimit, most=3))
    tokens, headers = made(tmp_path, "ann", "bob")
    with served(backend, tokens) as url, httpx.Client() as client:

        def begin(tenant: str) -> httpx.Response:
            return client.post(url, json=BEGIN, headers=headers[tenant])

        begun = [begin("ann").headers["mcp-session-id"] for _ in range(3)]
        assert begin("ann").status_code == 429
        assert begin("bob").status_code == 200
        client.delete(url, headers=headers["ann"] | {"mcp-session-id": begun[0]})
        assert [begin("ann").status_code for _ in range(2)] == [200, 429]
        refused = client.post(url, json={}, headers=headers["bob"]), client.post(url, json={}, headers=headers["bob"])
        assert [answer.status_code for answer in refused] == [400, 400]
        assert [begin("bob").status_code for _ in range(3)] == [200, 200, 429], "what was refused began no session"


def test_sessions_that_are_idle_for_long_do_not_count(backend: LocalBackend) -> None:
    now, statuses = 0.0, []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        name = str(len(statuses)).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"mcp-session-id", name)]})

    limit = SessionLimit(app, most=1, idle_s=10, clock=lambda: now)

    async def begin(at: float, name: bytes | None = None) -> None:
        nonlocal now
        now = at
        headers = [] if name is None else [(b"mcp-session-id", name)]

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await limit({"type": "http", "method": "POST", "headers": headers}, None, send)  # type: ignore[arg-type]

    async def run() -> None:
        for at, name in [(0, None), (9, None), (9, b"0"), (15, None), (20, None)]:
            await begin(at, name)

    anyio.run(run)
    assert statuses == [200, 429, 200, 429, 200]


@pytest.mark.parametrize(("how", "answer"), [("GET", b" 406 "), ("DELETE", b" 400 "), ("PUT", b" 408 ")])
def test_what_takes_no_body_waits_for_none_and_a_slow_one_is_given_up(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, how: str, answer: bytes
) -> None:
    """A body that never ends must not hold a connection and a session for ever."""
    monkeypatch.setattr("agent_runtime.mcp.server.BodyLimitMiddleware", partial(BodyLimitMiddleware, seconds=0.2))
    with served(backend) as url:
        for method, expected in ((how, answer), ("POST", b" 408 ")):
            with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port), timeout=30) as connection:
                head = (
                    f"{method} /mcp HTTP/1.1\r\nHost: {httpx.URL(url).netloc.decode()}\r\nContent-Length: 1000\r\n\r\n"
                )
                connection.sendall(head.encode() + b"{")
                assert expected in connection.recv(4096)


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
