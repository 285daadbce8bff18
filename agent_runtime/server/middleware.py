"""Middleware of every request: its id, its log line and metrics, and its admission."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import Ending, HunkError, TooManyRequests
from agent_runtime.quotas import FairQueue, TenantRateLimiter
from agent_runtime.request_context import (
    CONTEXT_KEY,
    LOCAL,
    PRINCIPAL_KEY,
    REQUEST_ID_HEADER,
    REQUEST_ID_KEY,
    CancelToken,
    Principal,
    RequestContext,
)
from agent_runtime.server.auth import get_flow
from agent_runtime.server.problems import make_problem_response
from agent_runtime.telemetry.metrics import Metering, Observer, RequestOutcome

_SANE = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""Accepted ids. They are written to logs and headers, so no character may end a line or a field."""


class RequestIdMiddleware:
    """Middleware that takes the sender's `X-Request-Id` if it is valid, else makes one, and sends it back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its id."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        scope[REQUEST_ID_KEY] = sent if _SANE.fullmatch(sent) else uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = scope[REQUEST_ID_KEY]
            await send(message)

        await self._app(scope, receive, send_with_id)


LOG = logging.getLogger("hunk.request")

NO_ROUTE = "(none)"
"""Label of paths without a route: the paths themselves would make any number of labels."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})

OTHER_METHOD = "other"
"""Label of all other methods: a sender may invent any number of them."""

MAX_METHOD = 16
"""Maximum characters of a method in the log."""

HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/stats"})

CLIENT_CLOSED_REQUEST = 499
"""Status in the log if the client disconnected before the answer started (nginx' number)."""


@dataclass(slots=True)
class RequestRecord:
    """The log record of one HTTP request. Outcome and tokens stay empty if no model was asked."""

    outcome: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    approximate_tokens: int = 0
    completion_tokens: int = 0


_RECORD: ContextVar[RequestRecord | None] = ContextVar("hunk_request", default=None)
"""For the log only. The thread that works on a request has a copy of its context, and so the same record."""


class RecordObserver(Observer):
    """Adds the tokens of each outcome to the record of the current request; a batch has several outcomes."""

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Add an outcome to the record."""
        record = _RECORD.get()
        if record is None:
            return
        usage = outcome.usage
        record.outcome = outcome.outcome if record.outcome in ("", outcome.outcome) else "mixed"
        record.prompt_tokens += usage.prompt
        record.cached_tokens += usage.cached
        record.approximate_tokens += usage.reused_approximate
        record.completion_tokens += usage.completion


class RequestLogMiddleware:
    """Middleware that logs and counts each request: inside `RequestIdMiddleware`, outside all that refuse requests."""

    def __init__(self, app: ASGIApp, metering: Metering) -> None:
        self._app = app
        self._counters = metering.counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, then log and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        started = time.perf_counter()
        status = CLIENT_CLOSED_REQUEST

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = _RECORD.set(record)
        self._counters.on_http_start()
        try:
            await self._app(scope, receive, send_and_record)
        except Exception:
            status = 500  # an outer handler answers it
            raise
        finally:
            _RECORD.reset(token)
            seconds = time.perf_counter() - started
            method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
            self._counters.on_http_end(method, _get_route(scope), status, seconds)
            _log_request(scope, record, status, seconds)


def _log_request(scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
    level = _choose_level(scope["path"], status)
    if not LOG.isEnabledFor(level):
        return
    principal: Principal = scope.get(PRINCIPAL_KEY, LOCAL)
    fields: dict[str, Any] = {
        "request_id": scope.get(REQUEST_ID_KEY, ""),
        "tenant": principal.tenant,
        "method": scope["method"][:MAX_METHOD],
        "route": _get_route(scope),
        "status": status,
        "ms": round(seconds * 1e3, 2),
    }
    if record.outcome:
        fields["outcome"] = record.outcome
    if record.prompt_tokens:
        fields |= {
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "approximate_tokens": record.approximate_tokens,
            "completion_tokens": record.completion_tokens,
        }
    LOG.log(level, "request", extra={"fields": fields})


def _choose_level(path: str, status: int) -> int:
    if status == 500:
        return logging.ERROR
    if path in HEALTH_PATHS and status in (200, 503):  # every few seconds, and 503 while the model loads
        return logging.DEBUG
    return logging.WARNING if status > 500 else logging.INFO


def _get_route(scope: Scope) -> str:
    """Return the route's pattern, such as `/workspaces/{name}`."""
    return str(getattr(scope.get("route"), "path", NO_ROUTE))


class Drain:
    """Counts the running requests. Once the drain has begun, new requests are refused and running ones may finish.

    Used on one event loop only.
    """

    def __init__(self) -> None:
        self._num_in_work = 0
        self._begun = False
        self._over = False
        self._waits: set[asyncio.Timeout] = set()
        self._nothing_left = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether the service is shutting down."""
        return self._begun

    def find_fault(self) -> Ending | None:
        """Return the error that work has to end with, None before `cut_off`. Called from any thread."""
        return self.fault if self._over else None

    @property
    def num_in_work(self) -> int:
        return self._num_in_work

    def begin(self) -> None:
        """Refuse new requests from now on."""
        self._begun = True
        if not self._num_in_work:
            self._nothing_left.set()

    def cut_off(self) -> None:
        """End the requests that still run."""
        self._over = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def track_wait(self, wait: asyncio.Timeout) -> Iterator[None]:
        """Have a wait for the client time out when the drain is cut off."""
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def check(self) -> None:
        """Raise Ending if the drain has begun."""
        if self._begun:
            raise self.fault

    @property
    def fault(self) -> Ending:
        """The error that requests get instead of a result."""
        return Ending("the service is ending; send the request again in some seconds, or to another one")

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Count a request that runs during the block; raises Ending if the drain has begun."""
        self.check()
        self._num_in_work += 1
        try:
            yield
        finally:
            self._num_in_work -= 1
            if self._begun and not self._num_in_work:
                self._nothing_left.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the running requests; return whether all have ended within the time."""
        try:
            await asyncio.wait_for(self._nothing_left.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


UNLIMITED_PATHS = frozenset({"/", "/healthz", "/readyz", "/metrics", "/stats", "/openapi.json", "/docs"})
"""Routes without limits: monitoring must work while the service is full or shutting down."""

UNLIMITED_FOLDER = "/static/"


class AdmissionMiddleware:
    """Middleware that answers 429 or 503 before the body is read. It is inside `BearerTokenMiddleware`."""

    def __init__(
        self, app: ASGIApp, *, tenants: TenantRateLimiter, queue: FairQueue, drain: Drain, metering: Metering
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._queue = queue
        self._drain = drain
        self._counters = metering.counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its context, or answer with a problem."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path in UNLIMITED_PATHS or path.startswith(UNLIMITED_FOLDER):
            await self._app(scope, receive, send)
            return
        principal: Principal = scope.get(PRINCIPAL_KEY, LOCAL)
        flow = get_flow(scope)
        begun = False
        try:
            with (
                self._drain.track_request(),
                self._tenants.admit(principal.tenant),
                self._queue.ticket(flow) as priority,
            ):
                begun = True
                cancel = CancelToken(self._drain.find_fault)
                scope[CONTEXT_KEY] = RequestContext(principal, flow, priority, scope.get(REQUEST_ID_KEY, ""), cancel)
                await self._app(scope, receive, send)
        except HunkError as fault:
            if begun:
                raise
            self._counters.count_refusal(fault.limit if isinstance(fault, TooManyRequests) else fault.kind)
            await make_problem_response(fault)(scope, receive, send)
