"""Outcomes of requests, their Prometheus metrics, and the sliding window behind `GET /stats`."""

from __future__ import annotations

import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from statistics import quantiles
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, Info, ProcessCollector
from prometheus_client import Counter as PrometheusCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agent_runtime.certainty import Certainty
from agent_runtime.errors import HunkError
from agent_runtime.types import ApplyResult, Method, Usage, sum_usage
from agent_runtime.version import __version__

if TYPE_CHECKING:
    from engine.engine import EngineStats
    from engine.kv_cache.page_pool import PoolStats
    from engine.precision import Precision
    from engine.reuse.idle_runner import IdleStats
    from engine.reuse.span_entry import SpanStats


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
            "Draft tokens that were put before the model, by where they were copied from.",
            ["source", "outcome"],
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


MAX_AGE_SECONDS = 0.25
"""Maximum age of the engine's counts. The engine answers only between two passes, so frequent questions would wait."""


class CachedEngineStats:
    """The engine's counts, at most `MAX_AGE_SECONDS` old. Reading older ones blocks for a pass of the model."""

    def __init__(self, ask: Callable[[], EngineStats | None], clock: Callable[[], float] = time.monotonic) -> None:
        """`ask` returns None while there is no engine."""
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._last: EngineStats | None = None
        self._last_at: float | None = None

    def __call__(self) -> EngineStats | None:
        """Return the counts, None while no model is loaded."""
        with self._lock:  # concurrent readers share one question to the engine
            if self._last_at is None or self._clock() - self._last_at > MAX_AGE_SECONDS:
                self._last = self._ask()
                self._last_at = self._clock()
            return self._last


class EngineMetrics(Collector):
    """Metrics of the engine; only `hunk_model_loaded 0` while no model is loaded."""

    def __init__(self, look: Callable[[], EngineStats | None]) -> None:
        self._look = look

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registration does not ask the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the engine."""
        stats = self._look()
        yield GaugeMetricFamily("hunk_model_loaded", "1 once the model can be asked.", float(stats is not None))
        if stats is None:
            return
        scheduler = stats.scheduler
        yield _make_gauges(
            "hunk_engine_requests",
            "Requests that the model works on, and that wait for it.",
            {"running": scheduler.num_running, "waiting": scheduler.num_waiting},
        )
        yield _make_counter("hunk_engine_passes", "Passes of the model, whoever took part.", stats.num_passes)
        yield _make_counter(
            "hunk_engine_preemptions", "Requests that lost their memory to others.", scheduler.num_preempted
        )
        yield from _collect_pool(stats.kv)
        yield from _collect_idle(stats.idle)
        if stats.spans is not None:
            yield from _collect_spans(stats.spans)


def _collect_pool(kv: PoolStats) -> Iterator[Metric]:
    yield _make_gauges(
        "hunk_kv_pages",
        "Pages for keys and values: held by requests, only cached, free.",
        {"in_use": kv.num_in_use, "cached": kv.num_cached, "free": kv.num_free},
    )
    yield _make_counter("hunk_kv_evicted_pages", "Cached pages whose memory was needed.", kv.num_evicted)
    yield _make_counter("hunk_kv_queried_tokens", "Tokens that were looked for in the prefix cache.", kv.num_queries)
    yield _make_counter("hunk_kv_hit_tokens", "Those of them that were found.", kv.num_hits)


def _collect_idle(idle: IdleStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("hunk_idle_tasks", "Prompts that are to be run exactly in idle time.", idle.num_waiting)
    yield _make_counter("hunk_idle_rebuilt_prompts", "Prompts that were, in idle time.", idle.counts.rebuilt)
    yield _make_counter("hunk_idle_rebuilt_tokens", "Their tokens.", idle.counts.rebuilt_tokens)
    yield _make_counter(
        "hunk_idle_audited_answers", "Approximate answers that were compared with exact ones.", idle.counts.audited
    )


def _collect_spans(spans: SpanStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("hunk_span_store_entries", "Entries that are kept for later edits.", spans.num_entries)
    yield GaugeMetricFamily("hunk_span_store_tokens", "Their tokens.", spans.num_tokens)
    yield GaugeMetricFamily("hunk_span_store_bytes", "Their memory.", spans.num_bytes)
    yield _make_counter(
        "hunk_span_queried_tokens", "Tokens behind exact prefixes that were looked for.", spans.num_queried
    )
    yield _make_counter("hunk_span_hit_tokens", "Those of them that were found.", spans.num_hit)
    yield _make_counter("hunk_span_evicted_entries", "Entries whose memory was needed.", spans.num_evicted)
    yield _make_counter("hunk_span_disk_hits", "Entries that were read from the disk.", spans.num_tier_hits)
    yield _make_counter("hunk_span_disk_misses", "Entries that the disk had lost or damaged.", spans.num_tier_misses)
    yield _make_counter(
        "hunk_span_disk_faults", "Entries that could not be written to the disk.", spans.num_tier_faults
    )


def _make_gauges(name: str, what: str, by_state: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=["state"])
    for state, value in by_state.items():
        family.add_metric([state], value)
    return family


def _make_counter(name: str, what: str, value: int) -> Metric:
    return CounterMetricFamily(name, what, value)


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

    def __init__(self, look: Callable[[], EngineStats | None] = lambda: None) -> None:
        """`look` returns the engine's counts, None while no model is loaded."""
        self._registry = CollectorRegistry()
        self._look = CachedEngineStats(look)
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
        engine = self._look()
        queue = {"running": 0, "waiting": 0}
        if engine is not None:
            queue = {"running": engine.scheduler.num_running, "waiting": engine.scheduler.num_waiting}
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "queue": queue,
            "precision": None if engine is None else _describe_precision(engine.precision),
            "cache": None if engine is None else _describe_cache(engine),
            "window": self.window.compute_rates(),
        }


def _describe_precision(precision: Precision) -> Mapping[str, str]:
    stored, activations = (str(each).removeprefix("torch.") for each in (precision.stored, precision.activations))
    weights = precision.quantize or stored
    return {"weights": weights, "activations": activations, "kv": stored, "reason": precision.reason}


def _describe_cache(engine: EngineStats) -> Mapping[str, Any]:
    kv, spans = engine.kv, engine.spans
    pages = {"in_use": kv.num_in_use, "cached": kv.num_cached, "free": kv.num_free, "total": kv.num_pages}
    return {
        "pages": pages,
        "hit_rate": round(kv.rolling_hit_rate, 4),
        "spans": None
        if spans is None
        else {
            "entries": spans.num_entries,
            "tokens": spans.num_tokens,
            "max_tokens": spans.num_slots,
            "bytes": spans.num_bytes,
            "hit_rate": round(spans.num_hit / spans.num_queried, 4) if spans.num_queried else 0.0,
        },
    }
