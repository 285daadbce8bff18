"""Outcomes of requests, their Prometheus metrics, and the sliding window behind `GET /stats`."""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import quantiles
from typing import Any, Self

from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.exposition import choose_encoder

from agent_runtime.certainty import Certainty
from agent_runtime.errors import HunkError
from agent_runtime.telemetry.engine_metrics import CachedReports, EngineMetrics, EngineReport
from agent_runtime.types import ApplyResult, Method, Usage, sum_usage
from agent_runtime.version import __version__


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of one request for an edit or the model.

    route: as in the OpenAPI document, such as `/apply`. outcome: `merged`, `rejected`, `noop` or `answered`; for an
    error its kind, such as `edit-refused`. timings: milliseconds, as in the answer. edits: for each file who merged it
    and how sure that is. first_token_ms: from the request to the model's first token, None if it was not asked.
    """

    route: str
    tenant: str
    outcome: str
    usage: Usage = field(default_factory=Usage)
    timings: Mapping[str, float] = field(default_factory=dict)
    edits: tuple[tuple[Method, Certainty], ...] = ()
    first_token_ms: float | None = None

    @classmethod
    def from_result(cls, route: str, tenant: str, result: ApplyResult, first_token_ms: float | None = None) -> Self:
        """Return the outcome of an apply that has a result, which may be a rejected merge."""
        edits = tuple((file.method, file.certainty) for file in result.files)
        return cls(route, tenant, result.status, result.usage, result.timings, edits, first_token_ms)

    @classmethod
    def from_fault(cls, route: str, tenant: str, fault: HunkError) -> Self:
        """Return the outcome of a request that failed, perhaps after the model was asked."""
        return cls(route, tenant, fault.kind, fault.usage or Usage())


class Observer:
    """Receives the outcome of each request. This one ignores it. Called from any thread; must return quickly."""

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Receive the outcome of one request."""


REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds. A rule merges in milliseconds; a model on a CPU takes seconds, and a minute for a long file."""

FIRST_TOKEN_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


class RequestCounters(Observer):
    """Prometheus counters of outcomes and of all HTTP requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = PrometheusCounter(
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
        self._edits = PrometheusCounter(
            "hunk_edits",
            "Files that were answered for, by who merged them and how sure that is.",
            ["method", "certainty"],
            registry=registry,
        )
        self._prompt = PrometheusCounter(
            "hunk_prompt_tokens", "Prompt tokens by where their KV came from.", ["kind"], registry=registry
        )
        self._completion = PrometheusCounter(
            "hunk_completion_tokens", "Tokens that the model wrote.", registry=registry
        )
        self._forwards = PrometheusCounter(
            "hunk_forwards", "Passes of the model, one of several requests once for each.", registry=registry
        )
        self._drafted = PrometheusCounter(
            "hunk_draft_tokens",
            "Draft tokens that were put before the model, by where they came from.",
            ["source", "outcome"],
            registry=registry,
        )
        self._draft_forwards = PrometheusCounter(
            "hunk_draft_forwards",
            "Passes that verified draft tokens, by where these came from.",
            ["source"],
            registry=registry,
        )
        self._http = PrometheusCounter(
            "hunk_http_requests", "HTTP requests.", ["method", "route", "status"], registry=registry
        )
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
        self._refused = PrometheusCounter(
            "hunk_refused_requests", "HTTP requests that a limit refused, by which.", ["limit"], registry=registry
        )

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Count a request for an edit or the model."""
        self._requests.labels(outcome.route, outcome.outcome).inc()
        total_ms = outcome.timings.get("total_ms")
        if total_ms is not None:
            self._seconds.labels(outcome.route).observe(total_ms / 1e3)
        if outcome.first_token_ms is not None:
            self._first_token.observe(outcome.first_token_ms / 1e3)
        for method, certainty in outcome.edits:
            self._edits.labels(method, certainty).inc()
        if outcome.usage.forwards:
            self._count_tokens(outcome.usage)

    def _count_tokens(self, usage: Usage) -> None:
        for kind in ("cached", "reused_approximate", "recomputed"):
            self._prompt.labels(kind).inc(getattr(usage, kind))
        self._completion.inc(usage.completion)
        self._forwards.inc(usage.forwards)
        for source, counts in usage.by_source.items():
            self._drafted.labels(source, "accepted").inc(counts.accepted)
            self._drafted.labels(source, "rejected").inc(counts.rejected)
            self._draft_forwards.labels(source).inc(counts.forwards)

    def on_http_start(self) -> None:
        """Count an HTTP request that starts."""
        self._in_flight.inc()

    def on_http_end(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an HTTP request that has ended."""
        self._in_flight.dec()
        self._http.labels(method, route, str(status)).inc()
        self._http_seconds.labels(route).observe(seconds)

    def count_refusal(self, limit: str) -> None:
        """Count an HTTP request that a limit refused."""
        self._refused.labels(limit).inc()


WINDOW_S = 300.0
MAX_REQUESTS = 2000
"""Maximum requests of the window: seven seconds of 300 edits by rule, or all that a CPU's model can answer."""


@dataclass(frozen=True, slots=True)
class _TimedOutcome:
    at: float
    outcome: RequestOutcome


class SlidingWindowStats(Observer):
    """Statistics of the requests of the last `window_s` seconds, at most `max_requests`."""

    def __init__(
        self,
        window_s: float = WINDOW_S,
        max_requests: int = MAX_REQUESTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_s = window_s
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: deque[_TimedOutcome] = deque(maxlen=max_requests)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        with self._lock:
            self._seen.append(_TimedOutcome(self._clock(), outcome))

    def compute_rates(self) -> dict[str, Any]:
        """Return the `window` of `GET /stats` (docs/api.md); a rate is None where its divisor is 0."""
        with self._lock:
            oldest = self._clock() - self._window_s
            while self._seen and self._seen[0].at < oldest:
                self._seen.popleft()
            outcomes = [seen.outcome for seen in self._seen]
        usage = sum_usage([outcome.usage for outcome in outcomes])
        return {
            "seconds": self._window_s,
            "requests": len(outcomes),
            "outcomes": dict(Counter(outcome.outcome for outcome in outcomes)),
            "prompt": usage.prompt,
            "cached": usage.cached,
            "reused_approximate": usage.reused_approximate,
            "recomputed": usage.recomputed,
            "completion": usage.completion,
            "forwards": usage.forwards,
            "by_source": {source: asdict(counts) for source, counts in usage.by_source.items()},
            "prefix_hit_rate": _divide(usage.cached, usage.prompt),
            "approximate_share": _divide(usage.reused_approximate, usage.prompt),
            "tokens_per_forward": _divide(usage.completion, usage.forwards),
            "total_ms": _compute_percentiles(
                [one.timings["total_ms"] for one in outcomes if "total_ms" in one.timings]
            ),
            "first_token_ms": _compute_percentiles(
                [one.first_token_ms for one in outcomes if one.first_token_ms is not None]
            ),
        }


def _divide(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _compute_percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Return the median and the 99th percentile, None without values."""
    if not values:
        return None
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else [values[0]] * 99
    return {"p50": round(cuts[49], 3), "p99": round(cuts[98], 3)}


def _find_torch_version() -> str:
    """Return the version of torch without importing it; "none" where it is not installed."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


class Metering(Observer):
    """Passes each outcome to the counters, the sliding window and the subscribed observers."""

    def __init__(self, look: Callable[[], Sequence[EngineReport]] = tuple) -> None:
        """`look` returns the reports of the engines, none while no model is loaded."""
        self._registry = CollectorRegistry()
        self._look = CachedReports(look)
        self._started = time.monotonic()
        self._others: list[Observer] = []
        self.counters = RequestCounters(self._registry)
        self.window = SlidingWindowStats()
        Info("hunk_build", "What runs.", registry=self._registry).info(
            {"version": __version__, "python": platform.python_version(), "torch": _find_torch_version()}
        )
        self._registry.register(EngineMetrics(self._look))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def subscribe(self, observer: Observer) -> None:
        """Pass outcomes to a further observer."""
        self._others.append(observer)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        self.counters.on_outcome(outcome)
        self.window.on_outcome(outcome)
        for other in self._others:
            other.on_outcome(outcome)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return all metrics in the format of the scraper's Accept header, and its content type.

        Blocks for a pass of the model, so that it must not be called on an event loop.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def stats(self) -> dict[str, Any]:
        """Return the queue, the cache and the rates for `GET /stats`. Blocks for a pass of the model."""
        engines = [report for report in self._look() if report.status]
        first: Mapping[str, Any] = engines[0].status if engines else {}
        replicas = [{"id": report.replica, **report.status} for report in engines if report.replica]
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "queue": {
                state: sum(report.status["queue"][state] for report in engines) for state in ("running", "waiting")
            },
            "precision": first.get("precision"),
            "cache": None if replicas else first.get("cache"),
            **({"replicas": replicas} if replicas else {}),
            "window": self.window.compute_rates(),
        }
