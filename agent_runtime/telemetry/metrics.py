"""Prometheus counters of requests, edits and tokens; docs/api.md has the list."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent_runtime.telemetry.observer import Finished, Observer
from agent_runtime.types import Usage

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds. A rule merges in milliseconds, a model on a CPU in seconds, a long file in a minute."""

FIRST_TOKEN_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


class RequestCounters(Observer):
    """Counts what `Observer.finished` tells, and the HTTP requests whatever they ask for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "hunk_requests",
            "Requests for an edit or the model, by how they ended.",
            ["route", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "hunk_request_duration_seconds",
            "Time that a request for an edit or the model took.",
            ["route"],
            registry=registry,
            buckets=REQUEST_BUCKETS,
        )
        self._first_token = Histogram(
            "hunk_time_to_first_token_seconds",
            "From the request to the model's first token, where it was asked.",
            registry=registry,
            buckets=FIRST_TOKEN_BUCKETS,
        )
        self._edits = Counter(
            "hunk_edits",
            "Files that were answered for, by who merged them and how sure that is.",
            ["method", "certainty"],
            registry=registry,
        )
        self._prompt = Counter(
            "hunk_prompt_tokens", "Prompt tokens by where their KV came from.", ["kind"], registry=registry
        )
        self._completion = Counter("hunk_completion_tokens", "Tokens that the model wrote.", registry=registry)
        self._forwards = Counter(
            "hunk_forwards", "Passes of the model, one of several requests once for each.", registry=registry
        )
        self._drafted = Counter(
            "hunk_draft_tokens",
            "Draft tokens that were put before the model, by where they were copied from.",
            ["source", "outcome"],
            registry=registry,
        )
        self._http = Counter("hunk_http_requests", "HTTP requests.", ["method", "route", "status"], registry=registry)
        self._http_seconds = Histogram(
            "hunk_http_request_duration_seconds",
            "Time to the end of the answer.",
            ["route"],
            registry=registry,
            buckets=REQUEST_BUCKETS,
        )
        self._in_flight = Gauge(
            "hunk_http_requests_in_flight", "HTTP requests that are being answered.", registry=registry
        )
        self._refused = Counter(
            "hunk_refused_requests", "HTTP requests that a limit refused, by which.", ["limit"], registry=registry
        )

    def finished(self, request: Finished) -> None:
        """Count a request for an edit or the model."""
        self._requests.labels(request.route, request.outcome).inc()
        total_ms = request.timings.get("total_ms")
        if total_ms is not None:
            self._seconds.labels(request.route).observe(total_ms / 1e3)
        if request.first_token_ms is not None:
            self._first_token.observe(request.first_token_ms / 1e3)
        for method, certainty in request.edits:
            self._edits.labels(method, certainty).inc()
        if request.usage.forwards:
            self._count_tokens(request.usage)

    def _count_tokens(self, usage: Usage) -> None:
        for kind in ("cached", "reused_approximate", "recomputed"):
            self._prompt.labels(kind).inc(getattr(usage, kind))
        self._completion.inc(usage.completion)
        self._forwards.inc(usage.forwards)
        for source, counts in usage.by_source.items():
            self._drafted.labels(source, "accepted").inc(counts.accepted)
            self._drafted.labels(source, "rejected").inc(counts.rejected)

    def http_began(self) -> None:
        """An HTTP request has come."""
        self._in_flight.inc()

    def http_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """It has its answer."""
        self._in_flight.dec()
        self._http.labels(method, route, str(status)).inc()
        self._http_seconds.labels(route).observe(seconds)

    def refused(self, limit: str) -> None:
        """A limit has refused an HTTP request."""
        self._refused.labels(limit).inc()
