"""Limits of what a client may send and how long it may take: bodies, nesting, headers, connections, unread answers."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from agent_runtime.errors import BadRequest
from agent_runtime.llm.interface import ModelMerge, ModelTask
from agent_runtime.quotas import Shares
from agent_runtime.request_context import PRINCIPAL_KEY, Piece, Principal, ProgressListener, RequestContext
from agent_runtime.server.app import MAX_BODY_BYTES
from agent_runtime.server.auth import MAX_HEADERS
from agent_runtime.server.request_body import (
    BLOCK_BYTES,
    MAX_DEPTH,
    MAX_VALUES,
    BodyLimitMiddleware,
    _read_outside_strings,
    check_structure,
)
from agent_runtime.server.uvicorn_server import MAX_HEAD_BYTES, NUM_CHECKS
from tests.agent_runtime.scripted import ScriptedMerger
from tests.security.guarded import Guarded, guarded

EDIT = {"original": "a = 1\n", "edit": '{"old_string": "a = 1", "new_string": "a = 2"}'}
PATIENCE_S = 0.3


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("limits")) as running:
        yield running


def said(service: Guarded, request: bytes) -> tuple[int, bytes]:
    """The status and the whole answer to raw bytes, read until the service closes the connection."""
    with socket.create_connection(service.address, timeout=30) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return int(answer.split(b" ", 2)[1]), answer


def head(*lines: str, start: str = "POST /apply HTTP/1.1") -> bytes:
    return "\r\n".join([start, "Host: localhost", "Content-Type: application/json", *lines, "", ""]).encode()


def depth_of(value: Any) -> int:
    """The slow obvious way."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(depth_of, children), default=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text('[]{}"\\,:a\n\u2028é', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]{}"\\', max_size=4), inner, max_size=3),
    max_leaves=20,
)


def num_values_of(value: Any) -> int:
    """The slow obvious way; an empty array or object counts as if it held one."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if children is None else 1 + max(1, sum(map(num_values_of, children)))


def is_refused(text: bytes, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> bool:
    try:
        check_structure(text, max_depth, max_values)
    except BadRequest:
        return True
    return False


@given(JSON, st.integers(0, 6), st.booleans(), st.integers(1, 40))
def test_the_depth_of_a_text_is_that_of_its_value(value: Any, limit: int, ascii_only: bool, block_bytes: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_runtime.server.request_body.BLOCK_BYTES", block_bytes)
        assert is_refused(text, limit) == (depth_of(value) > limit)
        assert is_refused(text, 99, max_values=max(1, limit)) == (num_values_of(value) > max(1, limit))


@given(st.text('[]"\\,', max_size=30), st.integers(1, 40))
def test_where_a_block_ends_changes_nothing(text: str, block_bytes: int) -> None:
    """Of no JSON, too: strings that never end, odd and even rows of backslashes."""
    whole = is_refused(text.encode(), 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent_runtime.server.request_body.BLOCK_BYTES", block_bytes)
        assert is_refused(text.encode(), 2) == whole


@pytest.mark.parametrize("end", [b"", b"\\"])
def test_the_look_at_a_string_that_never_ends_is_linear(end: bytes) -> None:
    """Each escaped quote may seem to begin a string: begun anew there, 50 KB took 14 s, and the service stood still."""
    text = b"[" * MAX_DEPTH + b'"' + b'\\"' * 500_000 + end
    assert is_refused(b"[" + text)
    pieces = [len(bare) for bare, _ in _read_outside_strings(text)]
    assert sum(pieces) == MAX_DEPTH, "what lies outside of the string"
    assert len(pieces) == -(-len(text) // BLOCK_BYTES), "each block is looked at once"


@pytest.mark.parametrize("path", ["/apply", "/apply/batch", "/v1/chat/completions"])
def test_a_body_that_is_nested_deep_is_refused(service: Guarded, path: str) -> None:
    for opening, closing, depth in (("[", "]", MAX_DEPTH + 1), ('{"a":', "}", 5_000), ("[", "]", 200_000)):
        body = '{"edit": ' + opening * depth + "1" + closing * depth + "}"
        response = service.ask("POST", path, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400
        assert "nested deeper" in response.text


def test_a_body_whose_string_never_ends_is_refused_like_any_other(service: Guarded) -> None:
    """1 MB of this had the service stand still for good."""
    body = b"[" * 65 + b"]" * 65 + b'"' + b'\\"' * 500_000
    assert service.ask("POST", "/apply", content=body, headers={"content-type": "application/json"}).status_code == 400


def test_a_body_of_very_many_values_is_refused(service: Guarded) -> None:
    """The parser holds the interpreter while it runs: 63 MB of small values would take it seconds."""
    body = b'{"edit": [' + b"1," * MAX_VALUES + b"1]}"
    response = service.ask("POST", "/apply", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "values" in response.text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/static/x", "/stats", "/workspaces"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS", "ODD"])
@pytest.mark.parametrize("says", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_what_is_only_read_takes_no_body(service: Guarded, method: str, path: str, says: str) -> None:
    """It is answered at once as without one, though the body never comes."""
    status, answer = said(service, head(says, start=f"{method} {path} HTTP/1.1"))
    assert status == said(service, head("Connection: close", start=f"{method} {path} HTTP/1.1"))[0]
    assert b"connection: close" in answer.lower()
    assert service.ask("GET", "/healthz", headers={"content-length": "0"}).status_code == 200


def test_brackets_in_a_text_are_no_nesting(service: Guarded) -> None:
    edit = json.dumps({"old_string": "a = 1", "new_string": "a = " + "[" * 500 + "]" * 500 + '"\\"'})
    assert service.ask("POST", "/apply", json=EDIT | {"edit": edit}).status_code == 200


def test_a_body_in_another_encoding_or_with_a_nul_is_refused(service: Guarded) -> None:
    for body in (json.dumps(EDIT).encode("utf-16"), b'{"edit": "\0"}'):
        response = service.ask("POST", "/apply", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400


def test_a_body_over_the_limit_is_refused_announced_or_not(service: Guarded) -> None:
    status, answer = said(service, head(f"Content-Length: {MAX_BODY_BYTES + 1}"))
    assert status == 413
    assert b"application/problem+json" in answer

    def endless() -> Iterator[bytes]:
        for _ in range(MAX_BODY_BYTES // (1 << 20) + 2):
            yield b" " * (1 << 20)

    response = service.ask("POST", "/apply", content=endless(), headers={"content-type": "application/json"})
    assert response.status_code == 413


def body_of(*parts: bytes, pause_s: float = 0.0, held: asyncio.Event | None = None) -> Callable[[], Awaitable[Message]]:
    """A sender of a body in parts; with `held`, the last one comes once that is set."""
    left = list(parts)

    async def receive() -> Message:
        await asyncio.sleep(pause_s)
        if held is not None and len(left) == 1:
            await held.wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    return receive


async def status_of(
    limit: BodyLimitMiddleware,
    receive: Callable[[], Awaitable[Message]],
    tenant: str | None = None,
    address: str = "127.0.0.1",
) -> int:
    """What a request with such a body is answered, of a tenant or of nobody in particular."""
    statuses = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "headers": [(b"transfer-encoding", b"chunked")],
        "client": (address, 1),
    }
    if tenant is not None:
        scope[PRINCIPAL_KEY] = Principal(tenant, frozenset())
    await limit(scope, receive, send)
    return statuses[0]


async def read_it(_: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize("by_tenant", [True, False])
def test_unfinished_bodies_of_one_leave_memory_for_the_others(by_tenant: bool) -> None:
    """Ten bodies of one sender, of which each may be all that there is room for; another's single one is taken."""

    async def run() -> tuple[list[int], int, int]:
        limit, held = BodyLimitMiddleware(read_it, max_bytes=400, max_held_bytes=1000), asyncio.Event()
        hoard = {"tenant": "hoard"} if by_tenant else {"address": "127.0.0.2"}
        calm = {"tenant": "calm"} if by_tenant else {"address": "127.0.0.1"}
        hoarded = [
            asyncio.create_task(status_of(limit, body_of(b"x" * 390, b"x", held=held), **hoard)) for _ in range(10)
        ]
        while sum(task.done() for task in hoarded) < 9:  # those that are refused
            await asyncio.sleep(0)
        calmly = await status_of(limit, body_of(b"x" * 200, b"x"), **calm)
        held.set()
        return await asyncio.gather(*hoarded), calmly, limit._held._left

    hoarded, calmly, left = asyncio.run(run())
    assert sorted(hoarded) == [200] + 9 * [429]
    assert calmly == 200
    assert left == 1000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=60))
def test_nobody_has_more_than_it_leaves_to_all_others_and_all_comes_back(wanted: list[tuple[str, int]]) -> None:
    shares, taken = Shares(100), [("", 0)]
    for holder, amount in wanted:
        if shares.take(holder, amount):
            taken.append((holder, amount))
            of_holder = sum(each for name, each in taken if name == holder)
            assert of_holder <= 100 - sum(each for _, each in taken)
    for holder, amount in taken:
        shares.give_back(holder, amount)
    assert (shares._left, dict(shares._taken)) == (100, {})


def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    answers: list[Message] = []

    async def app(*_: Any) -> None:
        raise AssertionError("nothing may come here")

    async def receive() -> Message:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: Message) -> None:
        answers.append(message)

    limit = BodyLimitMiddleware(app, max_bytes=1000, seconds=0.2, max_held_bytes=1000)
    asyncio.run(
        limit({"type": "http", "method": "POST", "headers": [(b"transfer-encoding", b"chunked")]}, receive, send)
    )
    assert answers[0]["status"] == 408
    assert (b"connection", b"close") in answers[0]["headers"]
    assert limit._held._left == 1000


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Host: evil.example"], 400),
        (["Content-Length: 2", "Content-Length: 3"], 400),
        (["Content-Length: 2", "Transfer-Encoding: chunked"], 400),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: identity"], 501),
        (["Transfer-Encoding: xchunked"], 501),
        (["Content-Length: -1"], 400),
        (["Content-Length: +2"], 400),
        (["Content-Length: 0x2"], 400),
        (["Content-Length : 2"], 400),
        (["X: a\0b"], 400),
        (["X: " + "y" * (MAX_HEAD_BYTES + 1)], 431),
        ([f"X-{number}: y" for number in range(MAX_HEADERS + 1)], 431),
        (["Origin: http://evil.example"], 403),
        (["Origin: null"], 403),
        (["Origin: http://localhost", "Origin: http://evil.example"], 400),
        (["Origin: http://localhost.evil.example"], 403),
        (["Origin: http://evil.example#@localhost"], 403),
    ],
)
def test_abused_headers_are_refused_and_the_connection_is_closed(
    service: Guarded, lines: list[str], status: int
) -> None:
    """Where what was sent can be read in two ways, nothing that follows it is read at all."""
    smuggled = b"0\r\n\r\nGET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answered, answer = said(service, head(*lines) + smuggled)
    assert answered in (status, 400), answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"ready"' not in answer


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "localhost@evil.example", "", "[::1", "127.0.0.2"]
)
def test_other_hosts_are_refused(service: Guarded, host: str) -> None:
    request = f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    assert said(service, request)[0] in (400, 403)


def test_what_is_no_http_is_answered_as_a_problem(service: Guarded) -> None:
    for request in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"SSH-2.0-x\r\n\r\n"):
        status, answer = said(service, request + b"\r\n\r\n")
        assert status == 400
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["type"] == "urn:hunk:problem:malformed"


def test_a_page_elsewhere_cannot_send_an_edit_without_asking_first(service: Guarded) -> None:
    """What a browser sends without a preflight is no JSON, and a preflight is not answered."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        sent = service.ask("POST", "/apply", content=json.dumps(EDIT), headers={"content-type": kind})
        assert sent.status_code == 415
    asked = service.ask("OPTIONS", "/apply", headers={"access-control-request-method": "POST"})
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control")]


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Guarded]:
    merger = Chatty()
    with guarded(tmp_path, merger=merger, stall_s=PATIENCE_S, max_connections=20) as running:
        yield running
    merger.enough.set()


class Chatty(ScriptedMerger):
    """Writes as much as there is room for, until nobody reads any more."""

    def __init__(self) -> None:
        super().__init__(text="a = 2\n")
        self.enough = threading.Event()
        self.ended = threading.Event()

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        progress.on_start()
        context.cancel.add_callback(self.enough.set)
        while not self.enough.wait(0.001):
            progress.on_tokens(1)
            progress.on_pieces(0, [Piece("x" * 10_000, "generated")])
        self.ended.set()
        return super().merge(task, context, progress)


def closed_after(connection: socket.socket, drip: bytes = b"") -> bool:
    """Whether the service closes the connection, into which a byte drips now and then, within half a minute."""
    connection.settimeout(0.02)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            if drip:
                connection.sendall(drip)
            if not connection.recv(4096):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (b"", b""),
        (b"POST /apply HT", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"X-More: y\r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", b""),
    ],
)
def test_whoever_does_not_get_on_is_cut_off(impatient: Guarded, begin: bytes, drip: bytes) -> None:
    with socket.create_connection(impatient.address) as connection:
        if begin:
            connection.sendall(begin)
        assert closed_after(connection, drip)


def test_whoever_gets_on_slowly_is_served(impatient: Guarded) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(impatient.address, timeout=30) as connection:
        for each in (request[:20], request[20:40], request[40:]):
            connection.sendall(each)
            time.sleep(PATIENCE_S / NUM_CHECKS)
        assert b"200" in connection.recv(4096)


def test_connections_over_the_limit_are_told_so_and_those_that_were_there_go_on(impatient: Guarded) -> None:
    with socket.create_connection(impatient.address) as first:
        others = [socket.create_connection(impatient.address, timeout=30) for _ in range(25)]
        try:
            refused = [other.recv(4096) for other in others[-3:]]
            assert all(answer.startswith(b"HTTP/1.1 503 ") and b"too-many-connections" in answer for answer in refused)
            first.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            first.settimeout(30)
            assert b"200 OK" in first.recv(4096)
        finally:
            for other in others:
                other.close()


@pytest.mark.parametrize(
    "begun", [b"", b"GET / HTTP/1.1\r\nX: ", head("Content-Length: 9")], ids=["no", "head", "body"]
)
def test_one_address_cannot_take_the_connections_of_all(tmp_path: Path, begun: bytes) -> None:
    """It has all there are, and keeps them; another address is let in all the same, and keeps what it has."""

    def connected(address: str) -> socket.socket:
        return socket.create_connection(service.address, timeout=30, source_address=(address, 0))

    with guarded(tmp_path, max_connections=6) as service:
        greedy = [connected("127.0.0.2") for _ in range(6)]
        for each in greedy:
            each.sendall(begun)
        kept = connected("127.0.0.1")
        try:
            for _ in range(3):
                kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while not answer.endswith(b"}"):  # the body may come in a packet of its own
                    answer += kept.recv(4096)
                assert b"200 OK" in answer
                greedy.append(connected("127.0.0.2"))
                assert greedy[-1].recv(4096).startswith(b"HTTP/1.1 503 ")
        finally:
            for each in (*greedy, kept):
                each.close()


def test_a_stream_that_nobody_reads_holds_little_memory_and_ends(tmp_path: Path) -> None:
    """The model writes 10 MB a second; the client reads nothing and keeps the connection open."""
    merger = Chatty()
    body = json.dumps(EDIT | {"mode": "model", "stream": True}).encode()
    with guarded(tmp_path, merger=merger, stall_s=1.0) as service:
        gc.collect()
        before = resident_bytes()
        with socket.create_connection(service.address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head(f"Content-Length: {len(body)}") + body)
            assert merger.ended.wait(30), "the model still works for somebody who does not read"
            held = resident_bytes() - before
        merger.enough.set()
        assert service.ask("GET", "/healthz").status_code == 200
    assert held < 150 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
