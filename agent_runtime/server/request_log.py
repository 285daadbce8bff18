"""Counts every request and writes one line about it: never a text, a token or a query string."""

from __future__ import annotations

import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.access import LOCAL, Principal
from agent_runtime.server.auth import PRINCIPAL_KEY
from agent_runtime.server.request_id import request_id
from agent_runtime.telemetry.metrics import Metering
from agent_runtime.telemetry.observer import Observer, RequestOutcome

LOG = logging.getLogger("hunk.request")

NO_ROUTE = "(none)"
"""The route of a path that there is not: its text would be a label without bound, and may hold anything."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})

OTHER = "other"
"""The label of all other methods, which are the sender's to invent."""

MAX_METHOD = 16
"""Characters of a method in the log."""

CHECKS = frozenset({"/healthz", "/readyz", "/metrics", "/stats"})

LEFT = 499
"""The status of a request whose client left before it had one (nginx' number)."""


@dataclass(slots=True)
class RequestRecord:
    """The log record of one HTTP request. Outcome and tokens stay empty if no model was asked."""

    outcome: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    approximate_tokens: int = 0
    completion_tokens: int = 0


_RECORD: ContextVar[RequestRecord | None] = ContextVar("hunk_request", default=None)
"""Serves the log only. The thread that works on a request has a copy of its context, and so the same record."""


class RecordObserver(Observer):
    """Notes in the record of the current request what it used. Several parts (a batch) are added up."""

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Note it."""
        record = _RECORD.get()
        if record is None:
            return
        usage = outcome.usage
        record.outcome = outcome.outcome if record.outcome in ("", outcome.outcome) else "mixed"
        record.prompt_tokens += usage.prompt
        record.cached_tokens += usage.cached
        record.approximate_tokens += usage.reused_approximate
        record.completion_tokens += usage.completion


class RequestLog:
    """Middleware, inside of that which gives requests their ids and outside of all that can refuse one."""

    def __init__(self, app: ASGIApp, metering: Metering) -> None:
        self._app = app
        self._counters = metering.counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and tell what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord()
        started = time.perf_counter()
        status = LEFT

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        token = _RECORD.set(record)
        self._counters.http_began()
        try:
            await self._app(scope, receive, send_and_record)
        except Exception:
            status = 500  # what answers it stands further out
            raise
        finally:
            _RECORD.reset(token)
            seconds = time.perf_counter() - started
            method = scope["method"] if scope["method"] in METHODS else OTHER
            self._counters.http_ended(method, _route_of(scope), status, seconds)
            _write(scope, record, status, seconds)


def _write(scope: Scope, record: RequestRecord, status: int, seconds: float) -> None:
    level = _level(scope["path"], status)
    if not LOG.isEnabledFor(level):
        return
    principal: Principal = scope.get(PRINCIPAL_KEY, LOCAL)
    fields: dict[str, Any] = {
        "request_id": request_id(scope),
        "tenant": principal.tenant,
        "method": scope["method"][:MAX_METHOD],
        "route": _route_of(scope),
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


def _level(path: str, status: int) -> int:
    if status == 500:
        return logging.ERROR
    if path in CHECKS and status in (200, 503):  # every few seconds, and 503 while the model loads
        return logging.DEBUG
    return logging.WARNING if status > 500 else logging.INFO


def _route_of(scope: Scope) -> str:
    """The route's pattern, such as `/workspaces/{name}`."""
    return str(getattr(scope.get("route"), "path", NO_ROUTE))
