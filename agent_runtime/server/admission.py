"""Admits requests within their tenant's limits, and none while the service shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.access import LOCAL, Principal
from agent_runtime.errors import Ending, HunkError, TooManyRequests
from agent_runtime.quotas import FairQueue, TenantRateLimiter
from agent_runtime.request_context import CancelToken, RequestContext
from agent_runtime.server.auth import CONTEXT_KEY, PRINCIPAL_KEY, holder_of
from agent_runtime.server.problems import problem_response
from agent_runtime.server.request_id import request_id
from agent_runtime.telemetry.metrics import Metering


class Drain:
    """Counts the requests in work; once it has begun, new ones are refused and the old ones are waited for.

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
        """Requests that are being answered."""
        return self._num_in_work

    def begin(self) -> None:
        """Take no more."""
        self._begun = True
        if not self._num_in_work:
            self._nothing_left.set()

    def cut_off(self) -> None:
        """Have what is still in work end."""
        self._over = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def may_end(self, wait: asyncio.Timeout) -> Iterator[None]:
        """A wait for the client, which times out when the drain is over."""
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def check(self) -> None:
        """Raise Ending where the service is."""
        if self._begun:
            raise self.fault

    @property
    def fault(self) -> Ending:
        """The error that requests get instead of a result."""
        return Ending("the service is ending; send the request again in some seconds, or to another one")

    @contextmanager
    def count_in(self) -> Iterator[None]:
        """A request is answered within the block; raises Ending instead."""
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


FREE_PATHS = frozenset({"/", "/healthz", "/readyz", "/metrics", "/stats", "/openapi.json"})
"""Routes that are always answered: monitoring must see a service that is full or shutting down."""

FREE_FOLDER = "/static/"


class Admission:
    """Middleware, inside of that which knows whose request it is: answers 429 or 503 before the body is read."""

    def __init__(
        self, app: ASGIApp, *, tenants: TenantRateLimiter, queue: FairQueue, drain: Drain, metering: Metering
    ) -> None:
        self._app = app
        self._tenants = tenants
        self._queue = queue
        self._drain = drain
        self._counters = metering.counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer a problem."""
        if scope["type"] != "http" or _is_free(scope["path"]):
            await self._app(scope, receive, send)
            return
        principal: Principal = scope.get(PRINCIPAL_KEY, LOCAL)
        flow = holder_of(scope)
        begun = False
        try:
            with (
                self._drain.count_in(),
                self._tenants.admit(principal.tenant),
                self._queue.ticket(flow) as priority,
            ):
                begun = True
                cancel = CancelToken(self._drain.find_fault)
                scope[CONTEXT_KEY] = RequestContext(principal, flow, priority, request_id(scope), cancel)
                await self._app(scope, receive, send)
        except HunkError as fault:
            if begun:
                raise
            self._counters.count_refusal(fault.limit if isinstance(fault, TooManyRequests) else fault.kind)
            await problem_response(fault)(scope, receive, send)


def _is_free(path: str) -> bool:
    return path in FREE_PATHS or path.startswith(FREE_FOLDER)
