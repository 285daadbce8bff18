"""A service without a process, a socket or a model: an httpx transport that answers as a test tells it to."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import anyio
import httpx

from agent_runtime.errors import HunkError
from agent_runtime.testing.scripted import Events, Lines, Recorded, Reply, Scripted, reply_of
from agent_runtime.types import ApplyResult


class FakeService(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Give it to a client as `transport`, blocking or asynchronous.

    `requests` has what was asked, in order. Where nothing is scripted for a route, the test fails with an
    AssertionError that names it.
    """

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self._scripts: dict[str, list[Scripted]] = {}

    def script(self, route: str, *answers: Scripted) -> FakeService:
        """What a route, such as "POST /apply", answers: one after the other, the last one again and again."""
        assert answers, "script at least one answer"
        self._scripts[route] = list(answers)
        return self

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a blocking client."""
        request.read()
        recorded, scripted = self._take(request)
        if isinstance(scripted, Events | Lines):
            return _response(request, scripted, _Blocking(scripted, recorded))
        reply = _reply(scripted)
        time.sleep(_allowed(request, reply.after_s))
        _raise_if_too_late(request, reply.after_s)
        return _whole(request, reply)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer an asynchronous client."""
        await request.aread()
        recorded, scripted = self._take(request)
        if isinstance(scripted, Events | Lines):
            return _response(request, scripted, _Asynchronous(scripted, recorded))
        reply = _reply(scripted)
        await anyio.sleep(_allowed(request, reply.after_s))
        _raise_if_too_late(request, reply.after_s)
        return _whole(request, reply)

    def _take(self, request: httpx.Request) -> tuple[Recorded, Scripted]:
        recorded = Recorded(
            request.method,
            request.url.path,
            dict(request.url.params),
            {name.lower(): value for name, value in request.headers.items()},
            json.loads(request.content) if request.content else None,
        )
        self.requests.append(recorded)
        route = f"{recorded.method} {recorded.path}"
        answers = self._scripts.get(route)
        assert answers, f"the test has scripted nothing for {route}, only {', '.join(self._scripts) or 'no route'}"
        return recorded, answers.pop(0) if len(answers) > 1 else answers[0]


class _Blocking(httpx.SyncByteStream):
    def __init__(self, scripted: Events | Lines, recorded: Recorded) -> None:
        self._scripted, self._recorded = scripted, recorded

    def __iter__(self) -> Iterator[bytes]:
        pieces = self._scripted.pieces()
        self._recorded.left = bool(pieces)
        for number, piece in enumerate(pieces, start=1):
            time.sleep(self._scripted.every_s)
            self._recorded.left = number < len(pieces)
            yield piece


class _Asynchronous(httpx.AsyncByteStream):
    def __init__(self, scripted: Events | Lines, recorded: Recorded) -> None:
        self._scripted, self._recorded = scripted, recorded

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = self._scripted.pieces()
        self._recorded.left = bool(pieces)
        for number, piece in enumerate(pieces, start=1):
            await anyio.sleep(self._scripted.every_s)
            self._recorded.left = number < len(pieces)
            yield piece


def _response(
    request: httpx.Request, scripted: Events | Lines, stream: httpx.SyncByteStream | httpx.AsyncByteStream
) -> httpx.Response:
    content_type = "text/event-stream" if isinstance(scripted, Events) else "application/x-ndjson"
    return httpx.Response(200, headers={"content-type": content_type}, stream=stream, request=request)


def _reply(scripted: Scripted) -> Reply:
    """An answer in one piece; an exception that is no HunkError is raised."""
    if isinstance(scripted, Exception) and not isinstance(scripted, HunkError):
        raise scripted
    assert isinstance(scripted, Reply | ApplyResult | HunkError | Mapping | list), f"{scripted!r} is no answer"
    return reply_of(scripted)


def _whole(request: httpx.Request, reply: Reply) -> httpx.Response:
    if reply.body is None or isinstance(reply.body, bytes):
        content: dict[str, Any] = {"content": reply.body}
    else:
        content = {"content": json.dumps(reply.body).encode()}
    headers = {"content-type": "application/json", **reply.headers}
    return httpx.Response(reply.status, headers=headers, request=request, **content)


def _read_timeout(request: httpx.Request) -> float | None:
    timeout: float | None = request.extensions.get("timeout", {}).get("read")
    return timeout


def _allowed(request: httpx.Request, after_s: float) -> float:
    timeout = _read_timeout(request)
    return after_s if timeout is None else min(after_s, timeout)


def _raise_if_too_late(request: httpx.Request, after_s: float) -> None:
    timeout = _read_timeout(request)
    if timeout is not None and after_s > timeout:
        raise httpx.ReadTimeout("the scripted answer comes too late", request=request)
