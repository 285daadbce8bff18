"""The client without a service: it calls the same application in this process, without a socket."""

from __future__ import annotations

import logging
import os
import queue
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette
from starlette.types import Message, Scope

from agent_runtime.apply.pipeline import Applier
from agent_runtime.client.client import Client
from agent_runtime.client.transport import NO_RETRIES, ClientSettings, Timeouts
from agent_runtime.llm.interface import Merger, ModelOnDemand, ModelSlot, NoModel
from agent_runtime.models.config import (
    DEFAULT_MODEL,
    NO_MODEL,
    SMALL_SPAN_GIB,
    LoadOptions,
    MergeOptions,
    ModelSettings,
)
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.server.app import build_app
from agent_runtime.server.service import Service
from agent_runtime.telemetry.metrics import Metering
from agent_runtime.workspace.history import History
from agent_runtime.workspace.registry import WorkspaceRegistry

_log = logging.getLogger(__name__)


class InProcessTransport(httpx.BaseTransport):
    """Runs the application in an event loop of its own, from its startup to `close`. Thread-safe.

    Answers are streamed as the application sends them; closing one before its end tells the application that the
    client has disconnected.
    """

    def __init__(self, app: Starlette) -> None:
        self._exit_stack = ExitStack()
        self._exchanges: set[_Exchange] = set()
        self._portal: BlockingPortal | None = self._exit_stack.enter_context(start_blocking_portal())
        try:
            self._exit_stack.enter_context(self._portal.wrap_async_context_manager(app.router.lifespan_context(app)))
        except BaseException:
            self.close()
            raise
        self._app: Starlette | None = app

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; raises ConnectError after `close`."""
        portal, app = self._portal, self._app
        if portal is None or app is None:
            raise httpx.ConnectError("this client is closed", request=request)
        exchange = _Exchange(request, portal)
        self._exchanges.add(exchange)
        try:
            task = portal.start_task_soon(exchange.run, app)
        except RuntimeError as error:  # closed at this moment
            raise httpx.ConnectError("this client is closed", request=request) from error
        task.add_done_callback(lambda _: self._exchanges.discard(exchange))
        try:
            start = exchange.read_message()
            assert start is not None, "a message, or ReadError"
        except BaseException:
            exchange.disconnect()
            raise
        headers = [(name, value) for name, value in start["headers"]]
        return httpx.Response(start["status"], headers=headers, stream=_Body(exchange), request=request)

    def close(self) -> None:
        """Cancel the running requests and shut the application down."""
        self._portal = self._app = None
        for exchange in list(self._exchanges):
            exchange.disconnect()
        self._exit_stack.close()


class _Exchange:
    """A request and its answer, which is passed from the event loop to the calling thread."""

    def __init__(self, request: httpx.Request, portal: BlockingPortal) -> None:
        self._request, self._portal = request, portal
        self._content = request.read()
        self._timeout: float | None = request.extensions.get("timeout", {}).get("read")
        self._sent: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._has_started = False
        self._is_read = False
        self._disconnected: anyio.Event | None = None

    async def run(self, app: Starlette) -> None:
        self._disconnected = anyio.Event()
        try:
            await app(self._build_scope(), self._receive, self._send)
        except Exception:  # noqa: BLE001 -- as in a server: the application has answered, and the log has the error
            _log.exception("%s %s failed", self._request.method, self._request.url.path)
        finally:
            self._sent.put(None)

    def read_message(self) -> Message | None:
        """Return the next message of the application, None at the end; raises errors of httpx."""
        try:
            message = self._sent.get(timeout=self._timeout)
        except queue.Empty:
            raise httpx.ReadTimeout(f"no answer within {self._timeout} s", request=self._request) from None
        if message is None and not self._has_started:
            raise httpx.ReadError("the application gave no answer", request=self._request)
        self._has_started = True
        return message

    def disconnect(self) -> None:
        """Tell the application that the client has disconnected."""
        try:
            self._portal.start_task_soon(self._set_disconnected)
        except RuntimeError:  # the loop has ended
            return

    async def _set_disconnected(self) -> None:
        if self._disconnected is not None:
            self._disconnected.set()

    async def _receive(self) -> Message:
        assert self._disconnected is not None
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._content, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._sent.put(message)

    def _build_scope(self) -> Scope:
        url = self._request.url
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self._request.method,
            "headers": [(name.lower(), value) for name, value in self._request.headers.raw],
            "scheme": url.scheme,
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "server": (url.host, url.port),
            "client": ("127.0.0.1", 0),
        }


class _Body(httpx.SyncByteStream):
    """The body of an answer, streamed."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        while (message := self._exchange.read_message()) is not None:
            yield message.get("body", b"")
            if not message.get("more_body", False):
                return

    def close(self) -> None:
        self._exchange.disconnect()


logging.getLogger("hunk").addHandler(logging.NullHandler())  # a library logs only where the program asks for it

NO_LIMITS = Timeouts(connect_s=None, read_s=None, work_s=None, write_s=None, pool_s=None)


class LocalClient(Client):
    """Merges edits and asks the model in this process: the same calls, answers and errors as over the network.

    root: the folder of the workspace `default`; others may be registered below it and below the `allowed` ones. model:
    a catalogue name or a path, loaded by the first call that needs it and freed by `close`; None: rules only.
    load, merging: options, by default those of `hunk serve`. settings: where models are stored, by default from the
    environment.
    """

    def __init__(
        self,
        root: Path | str | None = None,
        *,
        model: str | None = DEFAULT_MODEL,
        allowed: Sequence[Path | str] = (),
        load: LoadOptions | None = None,
        merging: MergeOptions | None = None,
        settings: ModelSettings | None = None,
        watch: bool = True,
        progress: Progress | None = None,
    ) -> None:
        settings, progress = settings or ModelSettings.from_env(os.environ), progress or SilentProgress()
        workspaces = WorkspaceRegistry(
            None if root is None else Path(root),
            allowed=[Path(folder) for folder in allowed],
            watch=watch,
            store=settings.cache_dir / "tokens",
            journals=settings.cache_dir / "journals",
            history=History.from_env(os.environ, settings.cache_dir),
            report=progress.report,
        )

        def load_model() -> Merger:
            from agent_runtime.wiring import make_model_slot  # it imports torch, which most edits do not need

            options = load or LoadOptions(span_gib=SMALL_SPAN_GIB)
            return make_model_slot(name, settings, options, progress, merging or MergeOptions(), workspaces).load()

        name = model or NO_MODEL
        self._model: ModelSlot = NoModel() if name == NO_MODEL else ModelOnDemand(name, load_model)
        self._workspaces = workspaces
        parts = Service(Applier(self._model.get), self._model, workspaces, metering=Metering(self._model.reports))
        self._connect(
            ClientSettings("http://localhost", None, NO_LIMITS, NO_RETRIES), InProcessTransport(build_app(parts))
        )

    def load(self) -> None:
        """Load the model now, instead of in the first call that needs it; raises ModelUnavailable."""
        self._model.get()

    def close(self) -> None:
        """Cancel the running calls and free the model; the client accepts no more calls."""
        super().close()
        self._workspaces.close()
