"""The counts of engines: their Prometheus metrics, and their part of `GET /stats`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from engine.engine import EngineStats
    from engine.kv_cache.page_pool import PoolStats
    from engine.precision import Precision
    from engine.prefix_tier import TierStats
    from engine.reuse.idle_runner import IdleStats
    from engine.reuse.span_entry import SpanStats

MAX_AGE_SECONDS = 0.25
"""Maximum age of the engine's counts. The engine answers only between two passes, so frequent questions would wait."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The counts of one engine. It can be pickled, and read without torch.

    metrics: for `GET /metrics`. status: `queue`, `precision` and `cache` of `GET /stats`. replica: the id of the
    replica, "" for the only engine.
    """

    metrics: tuple[Metric, ...]
    status: Mapping[str, Any] = field(default_factory=dict)
    replica: str = ""


def report_engine(stats: EngineStats) -> EngineReport:
    """Return the counts of an engine."""
    queue = {"running": stats.scheduler.num_running, "waiting": stats.scheduler.num_waiting}
    status = {"queue": queue, "precision": _describe_precision(stats.precision), "cache": _describe_cache(stats)}
    return EngineReport(tuple(_collect_engine(stats)), status)


def report_replica_counts(counts: Mapping[str, int]) -> EngineReport:
    """Return what happened between replicas: `requests`, `moves` and `retries`."""
    described = {
        "requests": "Requests that replicas answered.",
        "moves": "Requests that another replica answered than the one before with the same key.",
        "retries": "Requests that were sent again because their replica died.",
    }
    return EngineReport(
        tuple(_make_counter(f"hunk_replica_{name}", what, counts.get(name, 0)) for name, what in described.items())
    )


class CachedReports:
    """The reports of the engines, at most `MAX_AGE_SECONDS` old. Reading older ones blocks for a pass of the model."""

    def __init__(self, ask: Callable[[], Sequence[EngineReport]], clock: Callable[[], float] = time.monotonic) -> None:
        """`ask` returns none while there is no engine."""
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Sequence[EngineReport] = ()
        self._last_at: float | None = None

    def __call__(self) -> Sequence[EngineReport]:
        """Return the reports, none while no model is loaded."""
        with self._lock:  # concurrent readers share one question to the engine
            if self._last_at is None or self._clock() - self._last_at > MAX_AGE_SECONDS:
                self._last = self._ask()
                self._last_at = self._clock()
            return self._last


class EngineMetrics(Collector):
    """Metrics of the engines; only `hunk_model_loaded 0` while there is none. Those of replicas are labelled."""

    def __init__(self, look: Callable[[], Sequence[EngineReport]]) -> None:
        self._look = look

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registration does not ask the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the engines."""
        reports = self._look()
        yield GaugeMetricFamily("hunk_model_loaded", "1 once the model can be asked.", float(bool(reports)))
        yield from _join_metrics(reports)


def _join_metrics(reports: Iterable[EngineReport]) -> Iterable[Metric]:
    """Return each metric once, with the samples of all replicas."""
    joined: dict[str, Metric] = {}
    for report in reports:
        label = {"replica": report.replica} if report.replica else {}
        for metric in report.metrics:
            family = joined.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            family.samples += [sample._replace(labels={**sample.labels, **label}) for sample in metric.samples]
    return joined.values()


def _collect_engine(stats: EngineStats) -> Iterator[Metric]:
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
    if stats.tier is not None:
        yield from _collect_tier(stats.tier)


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


def _collect_tier(tier: TierStats) -> Iterator[Metric]:
    chunks = CounterMetricFamily(
        "hunk_tier_chunks", "Chunks of 256 tokens of the shared tier, by what became of them.", labels=["outcome"]
    )
    for outcome in ("hit", "missed", "rejected", "written", "dropped"):
        chunks.add_metric([outcome], getattr(tier, f"num_{outcome}"))
    yield chunks
    yield _make_counter("hunk_tier_read_bytes", "Bytes that were read from it.", tier.bytes_read)
    yield _make_counter("hunk_tier_written_bytes", "Bytes that were written to it.", tier.bytes_written)
    yield _make_counter("hunk_tier_given_up", "Fetches that computing would have overtaken.", tier.num_given_up)
    yield _make_counter("hunk_tier_faults", "Failures of the store, after which it is left alone.", tier.num_faults)


def _make_gauges(name: str, what: str, by_state: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=["state"])
    for state, value in by_state.items():
        family.add_metric([state], value)
    return family


def _make_counter(name: str, what: str, value: int) -> Metric:
    return CounterMetricFamily(name, what, value)


def _describe_precision(precision: Precision) -> Mapping[str, str]:
    stored, activations = (str(each).removeprefix("torch.") for each in (precision.stored, precision.activations))
    weights = precision.quantize or stored
    return {
        "weights": weights,
        "activations": activations,
        "kv": "int8" if precision.kv_int8 else stored,
        "reason": precision.reason,
    }


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
