"""Talks to a running service from an event loop; what it asks and how it reads answers is the blocking client's."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import Any, TypeVar

import anyio
import httpx
from httpx_sse import EventSource

from agent_runtime.client import service_calls
from agent_runtime.client.answers import EVENTS, LINES, checked, is_stream, value_in
from agent_runtime.client.apply_calls import Batch, BatchItem, EditRequest, apply_call, apply_patch_call, batches
from agent_runtime.client.call import Call, Value
from agent_runtime.client.events import Phase, Tokens
from agent_runtime.client.service_calls import ModelEntry
from agent_runtime.client.session_calls import begin_call
from agent_runtime.client.sessions import AsyncSession
from agent_runtime.client.settings import ClientSettings, Retries, Timeouts
from agent_runtime.client.streams import AsyncItems, AsyncStream, EventReader, Final, LineReader
from agent_runtime.client.wire import FAILURES, Wire
from agent_runtime.client.workspaces import AsyncClientWorkspaces
from agent_runtime.errors import ModelUnavailable
from agent_runtime.types import ApplyResult, PatchRequest, Reader, ReuseName

Own = TypeVar("Own", bound="AsyncClient")


class AsyncClient:
    """As `Client`, for an event loop: the same methods, to be awaited; streams are iterated by `async for`."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = ClientSettings.from_env(
            os.environ, base_url=base_url, token=token, timeouts=timeouts, retries=retries
        )
        self._wire = Wire(settings)
        self._http = httpx.AsyncClient(transport=transport, **self._wire.options())

    async def __aenter__(self: Own) -> Own:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def apply(
        self,
        request: EditRequest,
        *,
        model: str | None = None,
        write: bool = False,
        idempotency_key: str | None = None,
    ) -> ApplyResult:
        """As `Client.apply`."""
        return await self._send(apply_call(request, model=model, write=write, idempotency_key=idempotency_key))

    def stream(
        self,
        request: EditRequest,
        *,
        model: str | None = None,
        write: bool = False,
        idempotency_key: str | None = None,
    ) -> AsyncStream[ApplyResult]:
        """As `Client.stream`."""

        async def make() -> Call[ApplyResult]:
            return apply_call(request, model=model, write=write, stream=True, idempotency_key=idempotency_key)

        return self._follow(make)

    async def apply_patch(self, request: PatchRequest, read: Reader, *, model: str | None = None) -> ApplyResult:
        """As `Client.apply_patch`; `read` is called in this thread."""
        return await self._send(apply_patch_call(request, read, model=model))

    def apply_batch(
        self, requests: Iterable[EditRequest], *, model: str | None = None, write: bool = False
    ) -> AsyncItems[BatchItem]:
        """As `Client.apply_batch`."""
        return AsyncItems(self._batches(batches(requests, model=model, write=write)))

    async def models(self) -> tuple[ModelEntry, ...]:
        """As `Client.models`."""
        return await self._send(service_calls.models_call())

    async def stats(self) -> dict[str, Any]:
        """As `Client.stats`."""
        return await self._send(service_calls.stats_call())

    async def health(self) -> bool:
        """As `Client.health`."""
        return await self._send(service_calls.health_call())

    async def is_ready(self) -> bool:
        """As `Client.is_ready`."""
        try:
            return await self._send(service_calls.ready_call())
        except ModelUnavailable:
            return False

    @property
    def workspaces(self) -> AsyncClientWorkspaces:
        """As `Client.workspaces`."""
        return AsyncClientWorkspaces(self._send)

    def session(
        self, *, workspace: str | None = None, reuse: ReuseName | None = None, preamble: str | None = None
    ) -> AsyncSession:
        """As `Client.session`."""
        return AsyncSession(self._send, self._follow, begin_call(workspace, reuse, preamble))

    async def _send(self, call: Call[Value]) -> Value:
        return value_in(call, await self._answer(call), self._wire.base_url)

    async def _answer(self, call: Call[Any], accept: str = "") -> httpx.Response:
        attempts = self._wire.attempts(call)
        while True:
            try:
                response = await self._http.send(self._wire.request(self._http, call, accept), stream=bool(accept))
                if accept and not is_stream(response, accept):
                    await response.aread()
            except FAILURES as error:
                wait_s: float | None = attempts.wait_after(error)
            else:
                wait_s = attempts.wait_after_answer(response)
            if wait_s is None:
                return response
            await anyio.sleep(wait_s)

    def _follow(self, make: Callable[[], Awaitable[Call[Final]]]) -> AsyncStream[Final]:
        events = self._events(make)
        return AsyncStream(events)

    async def _events(self, make: Callable[[], Awaitable[Call[Final]]]) -> AsyncGenerator[Phase | Tokens | Final, None]:
        call = await make()
        async with aclosing(await self._answer(call, EVENTS)) as response:
            with self._wire.translated(call):
                reader = EventReader(call.read, self._wire.base_url)
                async with aclosing(EventSource(checked(response, EVENTS, self._wire.base_url)).aiter_sse()) as events:
                    async for sent in events:
                        event = reader.event(sent)
                        if event is not None:
                            yield event
                reader.check_ended()

    async def _batches(self, batches: list[Batch]) -> AsyncGenerator[BatchItem, None]:
        for batch in batches:
            call = batch.call
            async with aclosing(await self._answer(call, LINES)) as response:
                with self._wire.translated(call):
                    reader = LineReader(call.read, batch.num_requests, self._wire.base_url)
                    async for data in checked(response, LINES, self._wire.base_url).aiter_bytes():
                        for item in reader.items(data):
                            yield item
                    reader.check_ended()
