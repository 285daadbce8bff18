"""A request's priority and CPU slot do not depend on the log: they travel as arguments, not in a context variable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.llm.generate import RunResults, run_requests
from agent_runtime.llm.interface import ModelMerge
from agent_runtime.quotas import CpuSlots
from engine.errors import EngineClosed
from engine.types import GenerationRequest, Proposer
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving

FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"


class NoLog:
    """Middleware in place of the request log: records nothing."""

    def __init__(self, app: ASGIApp, **_: object) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


@dataclass
class RecordingEngine(ScriptedMerger):
    """Records the requests that reach the engine, then answers as scripted."""

    requests: list[GenerationRequest] = field(default_factory=list)

    def generate(self, request: GenerationRequest, proposer: Proposer | None) -> NoReturn:
        self.requests.append(request)
        raise EngineClosed("closed")

    def merge(self, *arguments: Any) -> ModelMerge:
        with pytest.raises(EngineClosed):
            run_requests(cast(Any, self), [(GenerationRequest([1], 1), None)], *arguments[1:], RunResults())
        return super().merge(*arguments)


class RecordingSlots(CpuSlots):
    """Records for whom a CPU slot is acquired."""

    def __init__(self) -> None:
        super().__init__()
        self.acquired: list[str] = []

    @asynccontextmanager
    async def acquire(self, flow: str) -> AsyncIterator[Callable[[], None]]:
        self.acquired.append(flow)
        async with super().acquire(flow) as release:
            yield release


def test_two_requests_keep_their_priority_and_cpu_slot_without_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_runtime.server.app.RequestLogMiddleware", NoLog)
    engine, slots = RecordingEngine(FILE), RecordingSlots()
    with serving(engine, change=lambda service: replace(service, cpu_slots=slots)) as url:
        for _ in range(2):
            assert post(url, {"original": FILE, "edit": BLOCK, "mode": "model"}).json()["method"] == "model"
    assert [request.priority for request in engine.requests] == [1, 2]
    assert slots.acquired == ["@127.0.0.1"] * 2
