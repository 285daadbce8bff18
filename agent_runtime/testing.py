"""A fake service, for tests of programs that use the SDK (docs/sdk.md)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from math import ceil
from typing import Any

import anyio
import httpx

from agent_runtime.apply.result import render_file_diff
from agent_runtime.client.calls import BatchItem
from agent_runtime.client.responses import Phase, Tokens
from agent_runtime.errors import HunkError
from agent_runtime.serialization import problem_to_json, result_to_json
from agent_runtime.types import ApplyResult, FileResult, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with a status, after `after_s` seconds; `body` is JSON, None for an empty body, or bytes."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    after_s: float = 0.0


Event = Phase | Tokens | ApplyResult | HunkError | Mapping[str, Any]


class Events:
    """A stream of phases, tokens and an answer (any JSON) or an error, `every_s` seconds apart."""

    def __init__(self, *events: Event, every_s: float = 0.0) -> None:
        self.events, self.every_s = events, every_s

    def encode(self) -> list[bytes]:
        """Return the bytes of each event."""
        return [_encode_event(event) for event in self.events]


class Lines:
    """The answer to a batch: the outcomes of its requests, in the order in which they finish."""

    def __init__(self, *items: BatchItem, every_s: float = 0.0) -> None:
        self.items, self.every_s = items, every_s

    def encode(self) -> list[bytes]:
        """Return the bytes of each line."""
        return [json.dumps(_encode_item(item)).encode() + b"\n" for item in self.items]


Scripted = Reply | Events | Lines | ApplyResult | HunkError | Mapping[str, Any] | list[Any] | Exception
"""The answer of a route. An exception other than HunkError is raised in the client, as if the network had failed."""


@dataclass(slots=True)
class Recorded:
    """A recorded request: `body` parsed from JSON, header names in lower case. left: the client closed the stream."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    left: bool = False


def merged_result(original: str, merged: str, path: str = "") -> ApplyResult:
    """Return the answer to an edit that a rule merges; a no-op where both texts are the same."""
    file = FileResult(
        path=path,
        status="merged" if merged != original else "noop",
        merged=merged,
        diff=render_file_diff(original, merged, path or "file", ""),
        method="deterministic",
        rung="exact",
        candidates=1,
        certainty="certain",
        checks=(),
        sha256_before=sha256(original.encode()).hexdigest(),
        sha256_after=sha256(merged.encode()).hexdigest(),
    )
    return ApplyResult((file,), Usage(), {"total_ms": 0.0})


def to_reply(scripted: ApplyResult | HunkError | Mapping[str, Any] | list[Any] | Reply) -> Reply:
    """Return a scripted answer as a `Reply`."""
    if isinstance(scripted, Reply):
        return scripted
    if isinstance(scripted, ApplyResult):
        return Reply(result_to_json(scripted))
    if isinstance(scripted, HunkError):
        headers = {"content-type": "application/problem+json"}
        if scripted.retry_after_s is not None:
            headers["retry-after"] = str(ceil(scripted.retry_after_s))
        return Reply(problem_to_json(scripted), scripted.http_status, headers)
    return Reply(scripted)


def _encode_event(event: Event) -> bytes:
    name, data = _to_event(event)
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def _to_event(event: Event) -> tuple[str, Any]:
    if isinstance(event, Phase):
        return "phase", {"phase": event.name}
    if isinstance(event, Tokens):
        return "tokens", {"region": event.region, "pieces": [asdict(piece) for piece in event.pieces]}
    if isinstance(event, HunkError):
        return "problem", problem_to_json(event)
    return "result", result_to_json(event) if isinstance(event, ApplyResult) else event


def _encode_item(item: BatchItem) -> dict[str, Any]:
    outcome = item.outcome
    if isinstance(outcome, HunkError):
        return {"id": None, "index": item.index, "status": outcome.http_status, "problem": problem_to_json(outcome)}
    return {"id": None, "index": item.index, "status": 200, "result": result_to_json(outcome)}


class FakeService(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A service with scripted answers; pass it to a client, blocking or asynchronous, as `transport`.

    `requests` has the recorded requests in order. A request without a scripted answer fails the test with an
    AssertionError that names its route.
    """

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self._scripts: dict[str, list[Scripted]] = {}

    def script(self, route: str, *answers: Scripted) -> FakeService:
        """Set the answers of a route, such as "POST /apply": one after the other, the last one repeatedly."""
        assert answers, "script at least one answer"
        self._scripts[route] = list(answers)
        return self

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        delay_s, answer = self._answer(request)
        time.sleep(delay_s)
        if isinstance(answer, httpx.ReadTimeout):
            raise answer
        return answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        delay_s, answer = self._answer(request)
        await anyio.sleep(delay_s)
        if isinstance(answer, httpx.ReadTimeout):
            raise answer
        return answer

    def _answer(self, request: httpx.Request) -> tuple[float, httpx.Response | httpx.ReadTimeout]:
        """Return the answer, or the client's timeout where that comes first, and the seconds until then."""
        recorded, scripted = self._take(request)
        if isinstance(scripted, Events | Lines):
            content_type = "text/event-stream" if isinstance(scripted, Events) else "application/x-ndjson"
            stream = _Stream(scripted, recorded)
            return 0.0, httpx.Response(200, headers={"content-type": content_type}, stream=stream, request=request)
        if isinstance(scripted, Exception) and not isinstance(scripted, HunkError):
            raise scripted
        reply = to_reply(scripted)
        timeout: float | None = request.extensions.get("timeout", {}).get("read")
        if timeout is not None and reply.after_s > timeout:
            return timeout, httpx.ReadTimeout("the scripted answer comes too late", request=request)
        is_raw = reply.body is None or isinstance(reply.body, bytes)
        content = reply.body if is_raw else json.dumps(reply.body).encode()
        headers = {"content-type": "application/json", **reply.headers}
        return reply.after_s, httpx.Response(reply.status, headers=headers, request=request, content=content)

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


class _Stream(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, scripted: Events | Lines, recorded: Recorded) -> None:
        self._scripted, self._recorded = scripted, recorded
        self._pieces = scripted.encode()
        recorded.left = bool(self._pieces)

    def __iter__(self) -> Iterator[bytes]:
        for number, piece in enumerate(self._pieces, start=1):
            time.sleep(self._scripted.every_s)
            self._recorded.left = number < len(self._pieces)
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for number, piece in enumerate(self._pieces, start=1):
            await anyio.sleep(self._scripted.every_s)
            self._recorded.left = number < len(self._pieces)
            yield piece
