"""The blocking and the asynchronous client of a service."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing, closing
from typing import Any, Self

import anyio
import httpx
from httpx_sse import EventSource

from agent_runtime.client import calls
from agent_runtime.client.calls import (
    BatchCall,
    BatchItem,
    Call,
    EditRequest,
    ModelEntry,
    Undo,
    Value,
    build_apply_call,
    build_batch_calls,
    build_patch_call,
    build_undo_call,
)
from agent_runtime.client.responses import (
    EVENTS,
    LINES,
    AsyncItems,
    AsyncStream,
    EventReader,
    Final,
    Items,
    LineReader,
    Phase,
    Stream,
    Tokens,
    check_stream,
    is_stream,
    parse_response,
)
from agent_runtime.client.sessions import AsyncSession, Session, build_begin_call
from agent_runtime.client.transport import FAILURES, ClientSettings, Retries, Timeouts, Transport
from agent_runtime.client.workspaces import AsyncClientWorkspaces, ClientWorkspaces
from agent_runtime.errors import ModelUnavailable
from agent_runtime.types import ApplyResult, PatchRequest, Reader, ReuseName


class Client:
    """A service at `base_url`, by default `HUNK_URL` or http://127.0.0.1:8311. Thread-safe.

    token: sent as a bearer token; by default `HUNK_TOKEN`. transport: of httpx; in tests
    `agent_runtime.testing.FakeService`. Every call raises NoConnection where no answer comes, and an error of
    `agent_runtime.errors` where the service refuses.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: str | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        settings = ClientSettings.from_env(
            os.environ, base_url=base_url, token=token, timeouts=timeouts, retries=retries
        )
        self._connect(settings, transport)

    def _connect(self, settings: ClientSettings, transport: httpx.BaseTransport | None) -> None:
        self._transport = Transport(settings)
        self._http = httpx.Client(transport=transport, **self._transport.build_options())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def apply(
        self,
        request: EditRequest,
        *,
        model: str | None = None,
        write: bool = False,
        idempotency_key: str | None = None,
    ) -> ApplyResult:
        """Merge one edit: of a file whose text is sent along, or of a file that the service reads.

        write: the service writes the merged file, which must be in a workspace. The call then has an idempotency key,
        so that a repeated call writes once; give your own key to repeat the call from another process.
        """
        return self._send(build_apply_call(request, model=model, write=write, idempotency_key=idempotency_key))

    def stream(
        self,
        request: EditRequest,
        *,
        model: str | None = None,
        write: bool = False,
        idempotency_key: str | None = None,
    ) -> Stream[ApplyResult]:
        """Merge as `apply`: yields phases and tokens, and at the end the ApplyResult. Closing cancels the work."""
        call = build_apply_call(request, model=model, write=write, stream=True, idempotency_key=idempotency_key)
        return self._follow(lambda: call)

    def apply_patch(self, request: PatchRequest, read: Reader, *, model: str | None = None) -> ApplyResult:
        """Merge an edit into the files that it names, all or none; `read` returns their texts, which are sent along.

        Nothing is written: `result.files` has the outcome of each.
        """
        return self._send(build_patch_call(request, read, model=model))

    def apply_batch(
        self, requests: Iterable[EditRequest], *, model: str | None = None, write: bool = False
    ) -> Items[BatchItem]:
        """Merge independent edits; yields the outcome of each as it finishes. Closing cancels the rest.

        More than 256 are sent as several calls, one after the other.
        """
        return Items(self._read_batches(build_batch_calls(requests, model=model, write=write)))

    def undo(self, write_id: str | None = None, *, workspace: str | None = None) -> Undo:
        """Have the service put the files of a write back, all or none; by default of the last one in the workspace.

        Raises NoSuchWrite if there is none, Stale if one of its files has changed since.
        """
        return self._send(build_undo_call(write_id, workspace))

    def models(self) -> tuple[ModelEntry, ...]:
        """Return the models that the service runs."""
        return self._send(calls.build_models_call())

    def stats(self) -> dict[str, Any]:
        """Return the service's statistics: its queue, its cache, rates of the last minutes."""
        return self._send(calls.build_stats_call())

    def health(self) -> bool:
        """Return whether the service's process answers; raises NoConnection where nothing does."""
        return self._send(calls.build_health_call())

    def is_ready(self) -> bool:
        """Return whether the service has loaded its model; raises NoConnection where nothing answers."""
        try:
            return self._send(calls.build_ready_call())
        except ModelUnavailable:
            return False

    @property
    def workspaces(self) -> ClientWorkspaces:
        """The folders that the service may read and write."""
        return ClientWorkspaces(self._send)

    def session(
        self, *, workspace: str | None = None, reuse: ReuseName | None = None, preamble: str | None = None
    ) -> Session:
        """Return a conversation with the model about files of a workspace, or about texts; its first call starts it.

        reuse: how its prompts follow changes of files (docs/reuse.md); None: the mode that suits the model best.
        preamble: text that begins every prompt.
        """
        return Session(self._send, self._follow, build_begin_call(workspace, reuse, preamble))

    def _send(self, call: Call[Value]) -> Value:
        """Send a call, with retries, and return the value of its answer."""
        return parse_response(call, self._fetch(call), self._transport.base_url)

    def _fetch(self, call: Call[Any], accept: str = "") -> httpx.Response:
        """Return the answer of the last attempt; its body is read, unless it is a stream of type `accept`."""
        attempts = self._transport.make_retry_policy(call)
        while True:
            try:
                response = self._http.send(self._transport.build_request(self._http, call, accept), stream=bool(accept))
                if accept and not is_stream(response, accept):
                    response.read()
            except FAILURES as error:
                wait_s: float | None = attempts.wait_after(error)
            else:
                wait_s = attempts.wait_after_answer(response)
            if wait_s is None:
                return response
            time.sleep(wait_s)

    def _follow(self, build_call: Callable[[], Call[Final]]) -> Stream[Final]:
        """Return the events of an answer; the call is built and sent when the first one is requested."""
        events = self._read_events(build_call)
        return Stream(events)

    def _read_events(self, build_call: Callable[[], Call[Final]]) -> Generator[Phase | Tokens | Final, None, None]:
        call = build_call()
        with closing(self._fetch(call, EVENTS)) as response, self._transport.translate_errors(call):
            reader = EventReader(call.read, self._transport.base_url)
            for sent in EventSource(check_stream(response, EVENTS, self._transport.base_url)).iter_sse():
                event = reader.parse(sent)
                if event is not None:
                    yield event
            reader.check_ended()

    def _read_batches(self, batches: list[BatchCall]) -> Generator[BatchItem, None, None]:
        for batch in batches:
            call = batch.call
            with closing(self._fetch(call, LINES)) as response, self._transport.translate_errors(call):
                reader = LineReader(call.read, batch.num_requests, self._transport.base_url)
                for data in check_stream(response, LINES, self._transport.base_url).iter_bytes():
                    yield from reader.parse(data)
                reader.check_ended()


class AsyncClient:
    """`Client` for an event loop: the same methods, to be awaited; streams are iterated by `async for`."""

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
        self._transport = Transport(settings)
        self._http = httpx.AsyncClient(transport=transport, **self._transport.build_options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
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
        """See `Client.apply`."""
        return await self._send(build_apply_call(request, model=model, write=write, idempotency_key=idempotency_key))

    def stream(
        self,
        request: EditRequest,
        *,
        model: str | None = None,
        write: bool = False,
        idempotency_key: str | None = None,
    ) -> AsyncStream[ApplyResult]:
        """See `Client.stream`."""

        async def build_call() -> Call[ApplyResult]:
            return build_apply_call(request, model=model, write=write, stream=True, idempotency_key=idempotency_key)

        return self._follow(build_call)

    async def apply_patch(self, request: PatchRequest, read: Reader, *, model: str | None = None) -> ApplyResult:
        """See `Client.apply_patch`; `read` is called in this thread."""
        return await self._send(build_patch_call(request, read, model=model))

    def apply_batch(
        self, requests: Iterable[EditRequest], *, model: str | None = None, write: bool = False
    ) -> AsyncItems[BatchItem]:
        """See `Client.apply_batch`."""
        return AsyncItems(self._read_batches(build_batch_calls(requests, model=model, write=write)))

    async def undo(self, write_id: str | None = None, *, workspace: str | None = None) -> Undo:
        """See `Client.undo`."""
        return await self._send(build_undo_call(write_id, workspace))

    async def models(self) -> tuple[ModelEntry, ...]:
        """See `Client.models`."""
        return await self._send(calls.build_models_call())

    async def stats(self) -> dict[str, Any]:
        """See `Client.stats`."""
        return await self._send(calls.build_stats_call())

    async def health(self) -> bool:
        """See `Client.health`."""
        return await self._send(calls.build_health_call())

    async def is_ready(self) -> bool:
        """See `Client.is_ready`."""
        try:
            return await self._send(calls.build_ready_call())
        except ModelUnavailable:
            return False

    @property
    def workspaces(self) -> AsyncClientWorkspaces:
        """See `Client.workspaces`."""
        return AsyncClientWorkspaces(self._send)

    def session(
        self, *, workspace: str | None = None, reuse: ReuseName | None = None, preamble: str | None = None
    ) -> AsyncSession:
        """See `Client.session`."""
        return AsyncSession(self._send, self._follow, build_begin_call(workspace, reuse, preamble))

    async def _send(self, call: Call[Value]) -> Value:
        return parse_response(call, await self._fetch(call), self._transport.base_url)

    async def _fetch(self, call: Call[Any], accept: str = "") -> httpx.Response:
        attempts = self._transport.make_retry_policy(call)
        while True:
            try:
                response = await self._http.send(
                    self._transport.build_request(self._http, call, accept), stream=bool(accept)
                )
                if accept and not is_stream(response, accept):
                    await response.aread()
            except FAILURES as error:
                wait_s: float | None = attempts.wait_after(error)
            else:
                wait_s = attempts.wait_after_answer(response)
            if wait_s is None:
                return response
            await anyio.sleep(wait_s)

    def _follow(self, build_call: Callable[[], Awaitable[Call[Final]]]) -> AsyncStream[Final]:
        events = self._read_events(build_call)
        return AsyncStream(events)

    async def _read_events(
        self, build_call: Callable[[], Awaitable[Call[Final]]]
    ) -> AsyncGenerator[Phase | Tokens | Final, None]:
        call = await build_call()
        async with aclosing(await self._fetch(call, EVENTS)) as response:
            with self._transport.translate_errors(call):
                reader = EventReader(call.read, self._transport.base_url)
                async with aclosing(
                    EventSource(check_stream(response, EVENTS, self._transport.base_url)).aiter_sse()
                ) as events:
                    async for sent in events:
                        event = reader.parse(sent)
                        if event is not None:
                            yield event
                reader.check_ended()

    async def _read_batches(self, batches: list[BatchCall]) -> AsyncGenerator[BatchItem, None]:
        for batch in batches:
            call = batch.call
            async with aclosing(await self._fetch(call, LINES)) as response:
                with self._transport.translate_errors(call):
                    reader = LineReader(call.read, batch.num_requests, self._transport.base_url)
                    async for data in check_stream(response, LINES, self._transport.base_url).aiter_bytes():
                        for item in reader.parse(data):
                            yield item
                    reader.check_ended()
