"""An application that is asked in this process answers as it does on a socket, and hears when its client leaves."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_runtime.client.local import InProcessTransport


class Probe:
    """An application that shows what reaches it."""

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
