"""LocalClient in this process: the same answers and errors as over a socket, streams, closing, and its transport."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_runtime import ApplyRequest, Client, LocalClient, WorkspaceRequest
from agent_runtime.client import NO_RETRIES
from agent_runtime.client.local import InProcessTransport
from agent_runtime.errors import HunkError, ModelUnavailable, OutsideRoot, SessionMissing, UnknownModel
from agent_runtime.models.config import ModelSettings
from agent_runtime.serialization import problem_to_json
from tests.agent_runtime.openai.scripted_chat import ChattingMerger
from tests.agent_runtime.serving import serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
MISSING = BLOCK.replace("a = 1", "zz")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text(FILE)
    (root / "b.bin").write_bytes(b"\0\1\2")
    return root


def local(merger: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> LocalClient:
    """A client whose model is `merger`."""

    class Slot:
        def load(self) -> Any:
            return merger

    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", lambda *_: Slot())
    return LocalClient(root, model="scripted", settings=ModelSettings(root.parent / "cache"), watch=False)


@pytest.fixture(params=["local", "socket"])
def client(request: pytest.FixtureRequest, root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    merger = ChattingMerger(FILE.replace("1", "7"))
    if request.param == "local":
        with local(merger, root, monkeypatch) as client:
            yield client
        return
    with serving(merger, root) as url, Client(url, retries=NO_RETRIES) as client:
        yield client


def comparable(value: Any) -> Any:
    """Return the result without values that differ from run to run."""
    if isinstance(value, HunkError):
        return problem_to_json(value)
    return value.files, value.usage, value.status, value.written


def done(client: Client, call: Any) -> Any:
    try:
        return comparable(call(client))
    except HunkError as fault:
        return comparable(fault)


CALLS = [
    lambda client: client.apply(ApplyRequest(FILE.encode(), BLOCK, "a.py")),
    lambda client: client.apply(ApplyRequest(FILE.encode(), MISSING, "a.py", mode="deterministic")),
    lambda client: client.apply(ApplyRequest(FILE.encode(), MISSING, "a.py", mode="model")),
    lambda client: client.apply(ApplyRequest(b"\0", BLOCK, "a.py")),
    lambda client: client.apply(ApplyRequest(FILE.encode(), BLOCK, "a.py", max_tokens=-1)),
    lambda client: client.apply(ApplyRequest(FILE.encode(), BLOCK, "a.py"), model="another"),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "a.py", expected_sha256="0" * 64)),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "a.py"), write=True),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "../a.py")),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "nosuch.py")),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "b.bin")),
    lambda client: client.apply(WorkspaceRequest(BLOCK, "a.py", workspace="nosuch")),
    lambda client: client.stream(ApplyRequest(FILE.encode(), MISSING, "a.py", mode="model")).result(),
    lambda client: client.stream(WorkspaceRequest(BLOCK, "nosuch.py")).result(),
    lambda client: next(client.apply_batch([WorkspaceRequest(BLOCK, "a.py")])).result,
    lambda client: next(client.apply_batch([WorkspaceRequest(BLOCK, "nosuch.py")])).result,
    lambda client: client.workspaces.register("/etc"),
    lambda client: client.workspaces.remove("nosuch"),
    lambda client: client.workspaces.read("../secret"),
    lambda client: client.session(workspace="nosuch").read(["a.py"]),
    lambda client: client.session().apply(BLOCK, path="a.py"),
    lambda client: client.session().apply(MISSING, path="a.py", mode="deterministic"),
]


def test_answers_and_errors_are_those_of_the_network(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes(client: Client) -> list[Any]:
        found = []
        for call in CALLS:
            (root / "a.py").write_text(FILE)
            found.append((done(client, call), (root / "a.py").read_text()))
        return found

    merger = ChattingMerger(FILE.replace("1", "7"))
    with serving(merger, root) as url, Client(url, retries=NO_RETRIES) as client:
        far = outcomes(client)
    with local(merger, root, monkeypatch) as client:
        near = outcomes(client)
    assert near == far
    assert len({str(outcome) for outcome in far}) > len(CALLS) // 2, "they ask for different things"


def test_a_session_is_the_same_near_and_far(client: Client) -> None:
    with client.session(workspace="default", reuse="exact") as session:
        (read,) = session.read(["a.py"], texts={}, with_text=True)
        assert (read.path, read.state, read.text) == ("a.py", "new", FILE)
        assert session.usage.turns == ()
        result = session.apply(BLOCK, path="a.py", write=True)
        assert (result.status, result.written) == ("merged", True)
        assert [turn.kind for turn in session.usage.turns] == ["apply"]
        assert session.read(["a.py"])[0].state == "changed"
        state = session.state()
        assert (state.workspace, state.reuse, [file.path for file in state.files]) == ("default", "exact", ["a.py"])
        session.read(forget=["a.py"])
        assert session.state().files == ()
    with pytest.raises(SessionMissing, match="closed"):
        session.read(["a.py"])


def test_a_session_that_ended_at_the_service_is_closed_in_peace(client: Client) -> None:
    with client.session() as session:
        session.read(texts={"x.py": "x = 1\n"})
        with client.session() as other:
            other._id = session.state().id
        with pytest.raises(SessionMissing):
            session.state()


def test_an_error_in_a_session_is_not_hidden_by_its_end(client: Client) -> None:
    session = client.session()
    session.read(["a.py"])
    with pytest.raises(OutsideRoot), session:
        session.read(["../a.py"])


def test_workspaces_near_and_far(client: Client, root: Path) -> None:
    assert [status.name for status in client.workspaces.list()] == ["default"]
    (root / "sub").mkdir()
    (root / "sub" / "ü b#c.py").write_text("x = 1\n")
    assert client.workspaces.register(str(root / "sub"), "sub") == client.workspaces.status("sub")
    assert client.workspaces.register(str(root / "sub"), "sub").name == "sub"
    assert [file.path for file in client.workspaces.files("sub")] == ["ü b#c.py"]
    content = client.workspaces.read("ü b#c.py", "sub")
    assert (content.text, content.encoding, content.size) == ("x = 1\n", "utf-8", 6)
    client.workspaces.remove("sub")
    assert [status.name for status in client.workspaces.list()] == ["default"]


def test_closing_a_stream_ends_the_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for near in (True, False):
        merger = ChattingMerger(FILE, hold=threading.Event())
        with serving(merger, root) as url, local(merger, root, monkeypatch) if near else Client(url) as client:
            with client.stream(ApplyRequest(FILE.encode(), MISSING, "a.py", mode="model")) as stream:
                next(stream)
            assert merger.cancelled.wait(30)


def test_the_model_is_loaded_when_it_is_needed_and_freed_at_the_end(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Any] = []

    class Slot:
        def load(self) -> Any:
            merger = ChattingMerger(FILE.replace("1", "7"))
            loads.append(weakref.ref(merger))
            return merger

    monkeypatch.setattr("agent_runtime.wiring.make_model_slot", lambda *_: Slot())
    client = LocalClient(root, model="scripted", settings=ModelSettings(root.parent / "cache"), watch=False)
    client.apply(ApplyRequest(FILE.encode(), BLOCK, "a.py"))
    assert not client.is_ready()
    assert loads == []
    for _ in range(2):
        assert client.apply(ApplyRequest(FILE.encode(), MISSING, "a.py", mode="model")).file.merged.startswith("a = 7")
    client.load()
    assert client.is_ready()
    assert len(loads) == 1
    closed = loads[0]().closed
    client.close()
    gc.collect()
    assert closed.is_set()
    assert loads[0]() is None
    client.close()


def test_a_model_that_cannot_be_had_fails_what_needs_it_and_nothing_else(root: Path) -> None:
    settings = ModelSettings(root.parent / "cache")
    with LocalClient(root, model="nosuch", settings=settings, watch=False) as client:
        assert client.apply(WorkspaceRequest(BLOCK, "a.py")).status == "merged"
        for _ in range(2):
            with pytest.raises(UnknownModel, match="nosuch"):
                client.load()
    with (
        LocalClient(root, model=None, settings=settings) as client,
        pytest.raises(ModelUnavailable, match="rules only"),
    ):
        client.session().ask("what?")


def test_tokens_and_urls_of_the_environment_are_not_for_this_process(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUNK_URL", "http://elsewhere")
    monkeypatch.setenv("HUNK_TOKEN", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with LocalClient(root, model=None, settings=ModelSettings(root.parent / "cache")) as client:
        assert client.health()


class Probe:
    """An application that answers with the request that reaches it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.left = threading.Event()
        routes = [
            Route("/echo/{rest:path}", self.echo, methods=["GET", "POST"]),
            Route("/pieces", self.pieces),
            Route("/forever", self.forever),
            Route("/silent", self.silent),
            Route("/bug", self.bug),
        ]
        self.app = Starlette(routes=routes, lifespan=self.lifespan)

    @asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.events.append("started")
        yield
        self.events.append("ended")

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        shown = [request.method, str(request.url), dict(request.query_params), body.decode(), request.headers["x-one"]]
        return JSONResponse(shown, 201, {"x-two": "2"})

    async def pieces(self, _: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            for part in (b"one", b"", b"two"):
                yield part

        return StreamingResponse(parts())

    async def forever(self, request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"begun"
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.left.set()

        return StreamingResponse(parts())

    async def silent(self, request: Request) -> Response:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.left.set()
        return Response()

    async def bug(self, _: Request) -> Response:
        raise ZeroDivisionError("a bug")


@contextmanager
def probing(probe: Probe) -> Iterator[httpx.Client]:
    with httpx.Client(base_url="http://localhost", transport=InProcessTransport(probe.app)) as client:
        yield client


def test_requests_arrive_whole_and_answers_come_back() -> None:
    with probing(Probe()) as client:
        answer = client.post("/echo/a%2Fb c?x=1&y=%20", content="tëxt".encode(), headers={"X-One": "1"})
    assert (answer.status_code, answer.headers["x-two"]) == (201, "2")
    method, url, query, body, header = answer.json()
    assert (method, query, body, header) == ("POST", {"x": "1", "y": " "}, "tëxt", "1")
    assert url.startswith("http://localhost/echo/a/b")


def test_the_application_starts_and_ends_with_the_transport() -> None:
    probe = Probe()
    with probing(probe) as client:
        assert probe.events == ["started"]
        assert client.get("/pieces").content == b"onetwo"
    assert probe.events == ["started", "ended"]
    with pytest.raises(RuntimeError, match="closed"):
        client.get("/pieces")


def test_pieces_come_as_they_are_sent_and_closing_tells_the_application() -> None:
    probe = Probe()
    with probing(probe) as client, client.stream("GET", "/forever") as response:
        assert next(response.iter_raw()) == b"begun"
        assert not probe.left.is_set()
        response.close()
        assert probe.left.wait(30)


def test_a_client_that_waits_no_longer_has_left() -> None:
    probe = Probe()
    with probing(probe) as client:
        with pytest.raises(httpx.ReadTimeout):
            client.get("/silent", timeout=0.05)
        assert probe.left.wait(30)


def test_closing_ends_what_is_under_way() -> None:
    probe = Probe()
    client = httpx.Client(base_url="http://localhost", transport=InProcessTransport(probe.app), timeout=None)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.get, "/silent")
        while not client._transport._exchanges:  # it has arrived
            anyio.run(anyio.sleep, 0.01)
        client.close()
        assert asked.result(30).status_code == 200
    assert probe.left.is_set()
    assert probe.events == ["started", "ended"]


def test_many_threads_may_ask_at_once() -> None:
    with probing(Probe()) as client, ThreadPoolExecutor(16) as pool:
        urls = [f"/echo/{number}" for number in range(100)]
        answers = pool.map(lambda url: client.get(url, headers={"x-one": url}).json()[-1], urls)
        assert [*answers] == urls


def test_a_bug_of_the_application_is_a_500_and_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with probing(Probe()) as client:
        assert client.get("/bug").status_code == 500
    assert "GET /bug failed" in caplog.text
    assert "a bug" in caplog.text


def test_a_start_that_fails_is_raised_and_nothing_is_left_running() -> None:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        raise ValueError("no start")
        yield

    before = threading.active_count()
    with pytest.raises(ValueError, match="no start"):
        InProcessTransport(Starlette(lifespan=lifespan))
    assert threading.active_count() == before
