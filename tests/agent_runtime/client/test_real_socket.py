"""Both clients against the service on a socket: the same answers, cancelled streams, writes that happen once."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_runtime import ApplyRequest, AsyncClient, Client, Phase, Tokens, WorkspaceRequest
from agent_runtime.errors import EditRefused, NoConnection, SessionBusy
from agent_runtime.types import ApplyResult
from tests.agent_runtime.client.both import Doing, by_async, by_blocking
from tests.agent_runtime.client.conftest import Chatting
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.serving import serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MISSING = BLOCK.replace("a = 1", "zz")
MODEL = ApplyRequest(FILE.encode(), MISSING, "a.py", mode="model")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    for name in ("a.py", "b.py"):
        (root / name).write_text(FILE)
    return root


def plain(value: Any) -> Any:
    """Return the result without times."""
    return (value.files, value.usage, value.written) if isinstance(value, ApplyResult) else value


async def session_by_async(client: AsyncClient) -> Any:
    async with client.session(workspace="default") as session:
        read = await session.read(["a.py"], with_text=True)
        answer = await session.ask("what?", max_tokens=5, stop=["zz"])
        events = [event async for event in session.stream("and what?", temperature=0.5)]
        edit = await session.apply(BLOCK, path="a.py", write=True)
        last = await session.stream_apply(BLOCK, path="b.py").result()
        state = await session.state()
        return (
            read,
            answer.text,
            events[:-1],
            events[-1].text,
            plain(edit),
            plain(last),
            state.messages,
            session.usage.total,
        )


def session_by_blocking(client: Client) -> Any:
    with client.session(workspace="default") as session:
        read = session.read(["a.py"], with_text=True)
        answer = session.ask("what?", max_tokens=5, stop=["zz"])
        events = [*session.stream("and what?", temperature=0.5)]
        edit = session.apply(BLOCK, path="a.py", write=True)
        last = session.stream_apply(BLOCK, path="b.py").result()
        state = session.state()
        return (
            read,
            answer.text,
            events[:-1],
            events[-1].text,
            plain(edit),
            plain(last),
            state.messages,
            session.usage.total,
        )


def text_of(events: list[Any]) -> str:
    return "".join(event.text for event in events if isinstance(event, Tokens))


CALLS: list[Doing] = [
    lambda client: client.apply(MODEL),
    lambda client: client.apply(ApplyRequest(FILE.encode(), MISSING, "a.py", mode="deterministic")),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "a.py"), write=True),
    lambda client: client.apply_batch(
        [WorkspaceRequest(BLOCK, "a.py"), WorkspaceRequest(BLOCK, "nosuch.py")], write=True
    ),
    lambda client: client.stream(WorkspaceRequest(MISSING, "a.py", mode="model")),
    lambda client: client.models(),
    lambda client: client.is_ready(),
    lambda client: client.workspaces.list(),
    lambda client: client.workspaces.files(),
    lambda client: client.workspaces.read("a.py"),
    lambda client: client.workspaces.status("nosuch"),
]


def test_both_clients_get_the_same(root: Path, chatting: Chatting) -> None:
    def reset() -> None:
        for name in ("a.py", "b.py"):
            (root / name).write_text(FILE)

    with serving(chatting(FILE.replace("1", "7")), root) as url:
        for number, call in enumerate(CALLS):
            reset()
            blocking, text = by_blocking(call, url), (root / "a.py").read_text()
            reset()
            asynchronous = by_async(call, url)
            assert (root / "a.py").read_text() == text
            assert shown(blocking.value) == shown(asynchronous.value), number
            assert blocking.error == asynchronous.error
        reset()
        blocking = by_blocking(session_by_blocking, url)
        reset()
        asynchronous = by_async(session_by_async, url)
        assert blocking.error is None
        assert blocking.value == asynchronous.value


def shown(value: Any) -> Any:
    """Return the outcome without times, and a batch in the order of its requests."""
    if not isinstance(value, list):
        return plain(value)
    if value and isinstance(value[0], Phase):
        return [plain(item) for item in value]
    return sorted(str(plain(getattr(item, "outcome", item))) for item in value)


def test_closing_a_stream_of_either_client_ends_the_work(root: Path) -> None:
    async def leave(url: str) -> None:
        async with AsyncClient(url) as client, client.stream(MODEL) as stream:
            await anext(stream)

    for is_async in (False, True):
        merger = ChattingMerger(FILE, hold=threading.Event())
        with serving(merger, root) as url:
            if is_async:
                anyio.run(leave, url)
            else:
                with Client(url) as client, client.stream(MODEL) as stream:
                    next(stream)
            assert merger.cancelled.wait(30)


def test_cancelling_an_asynchronous_call_ends_the_work(root: Path) -> None:
    merger = ChattingMerger(FILE, hold=threading.Event())

    async def give_up(url: str) -> None:
        async with AsyncClient(url) as client, anyio.create_task_group() as tasks:
            tasks.start_soon(client.apply, MODEL)
            while not merger.seen:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    with serving(merger, root) as url:
        anyio.run(give_up, url)
        assert merger.cancelled.wait(30)


def test_a_question_that_is_left_half_way_ends_and_the_session_goes_on(root: Path, chatting: Chatting) -> None:
    merger = chatting(FILE, hold=threading.Event())
    chat = merger.chatting
    with serving(merger, root) as url, Client(url) as client, client.session() as session:
        with session.stream("what?") as stream:
            first = next(event for event in stream if isinstance(event, Tokens))
            assert first.text == "Hel"
        assert chat.cancelled.wait(30)
        chat.hold = None
        answer = None
        while answer is None:
            with suppress(SessionBusy):  # the call that was left may still be ending
                answer = session.ask("again?")
        assert answer.text == "Hello, world"
        assert len(session.usage.turns) == 1


def test_a_service_that_ends_in_the_middle_is_no_connection(root: Path) -> None:
    ways: list[Doing] = [
        lambda client: client.apply(WorkspaceRequest(BLOCK, "a.py")),
        lambda client: client.stream(WorkspaceRequest(BLOCK, "a.py")),
        lambda client: client.apply_batch([WorkspaceRequest(BLOCK, "a.py")]),
    ]
    with serving(None, root) as url, losing(url, first_only=False) as proxy:
        for way in ways:
            for outcome in (by_blocking(way, proxy), by_async(way, proxy)):
                assert outcome.error is not None
                assert outcome.error[0] is NoConnection


@contextmanager
def losing(url: str, *, first_only: bool = True) -> Iterator[str]:
    """The URL of a proxy that forwards requests, and drops the answer to the first one, or to all."""
    host, port = url.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def work() -> None:
        lost = False
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, socket.create_connection((host, int(port)), timeout=30) as service:
                answer = passed_on(connection, service)
                if lost and first_only:
                    connection.sendall(answer)
                lost = True

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def passed_on(connection: socket.socket, service: socket.socket) -> bytes:
    """Read the whole answer to one request."""
    connection.settimeout(30)
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(1 << 16)
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    while len(body) < int(length[1]):
        body += connection.recv(1 << 16)
    service.sendall(re.sub(rb"(?i)connection: keep-alive", b"Connection: close", head) + b"\r\n\r\n" + body)
    return b"".join(iter(lambda: service.recv(1 << 16), b""))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_write_whose_answer_is_lost_is_asked_for_again_and_done_once(root: Path, is_async: bool) -> None:
    run = by_async if is_async else by_blocking
    insert = '{"path": "a.py", "insert_line": 1, "old": "a = 1", "new": "a = 1"}'
    with serving(None, root) as url, losing(url) as proxy:
        outcome = run(lambda client: client.apply(WorkspaceRequest(insert, "a.py"), write=True), proxy)
    assert outcome.value.written
    assert (root / "a.py").read_text() == "a = 1\n" + FILE


def test_a_refusal_is_the_same_error_by_every_way(root: Path) -> None:
    request = WorkspaceRequest(MISSING, "a.py", mode="deterministic")
    ways: list[Doing] = [
        lambda client: client.apply(request),
        lambda client: client.stream(request).result(),
        lambda client: next(client.apply_batch([request])).result,
        lambda client: client.session().apply(MISSING, path="a.py", mode="deterministic"),
    ]
    with serving(None, root) as url:
        errors = [by_blocking(way, url).error for way in ways]
    assert errors == [errors[0]] * len(ways)
    assert errors[0] is not None
    assert errors[0][0] is EditRefused


def test_a_stream_that_is_read_to_its_end_leaves_its_connection_for_the_next_call(root: Path) -> None:
    with serving(ChattingMerger(FILE), root) as url, Client(url) as client:
        for _ in range(3):
            client.stream(MODEL).result()
            assert [*client.apply_batch([MODEL])]
        connections = client._http._transport._pool.connections
        assert len(connections) == 1
        assert connections[0].is_idle()
