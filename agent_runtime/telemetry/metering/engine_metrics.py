"""The engine's own counts as Prometheus metrics, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from engine.engine import EngineStats
    from engine.idle_work import IdleStats
    from engine.paging.stats import PoolStats
    from engine.reuse.store.stats import SpanStats


class EngineMetrics(Collector):
    """Nothing but `hunk_model_loaded 0` while no model is loaded."""

    def __init__(self, look: Callable[[], EngineStats | None]) -> None:
        self._look = look

    def describe(self) -> Iterator[Metric]:
        """Have registration ask nothing of the engine."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """One look at the engine."""
        stats = self._look()
        yield GaugeMetricFamily("hunk_model_loaded", "1 once the model can be asked.", float(stats is not None))
        if stats is None:
            return
        scheduler = stats.scheduler
        yield _states(
            "hunk_engine_requests",
            "Requests that the model works on, and that wait for it.",
            {"running": scheduler.num_running, "waiting": scheduler.num_waiting},
        )
        yield _total("hunk_engine_passes", "Passes of the model, whoever took part.", stats.num_passes)
        yield _total("hunk_engine_preemptions", "Requests that lost their memory to others.", scheduler.num_preempted)
        yield from _pool(stats.kv)
        yield from _idle(stats.idle)
        if stats.spans is not None:
            yield from _spans(stats.spans)


def _pool(kv: PoolStats) -> Iterator[Metric]:
    yield _states(
        "hunk_kv_pages",
        "Pages for keys and values: held by requests, only cached, free.",
        {"in_use": kv.num_in_use, "cached": kv.num_cached, "free": kv.num_free},
    )
    yield _total("hunk_kv_evicted_pages", "Cached pages whose memory was needed.", kv.num_evicted)
    yield _total("hunk_kv_queried_tokens", "Tokens that were looked for in the prefix cache.", kv.num_queries)
    yield _total("hunk_kv_hit_tokens", "Those of them that were found.", kv.num_hits)


def _idle(idle: IdleStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("hunk_idle_tasks", "Prompts that are to be run exactly in idle time.", idle.num_waiting)
    yield _total("hunk_idle_rebuilt_prompts", "Prompts that were, in idle time.", idle.counts.rebuilt)
    yield _total("hunk_idle_rebuilt_tokens", "Their tokens.", idle.counts.rebuilt_tokens)
    yield _total(
        "hunk_idle_audited_answers", "Approximate answers that were compared with exact ones.", idle.counts.audited
    )


def _spans(spans: SpanStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("hunk_span_store_entries", "Entries that are kept for later edits.", spans.num_entries)
    yield GaugeMetricFamily("hunk_span_store_tokens", "Their tokens.", spans.num_tokens)
    yield GaugeMetricFamily("hunk_span_store_bytes", "Their memory.", spans.num_bytes)
    yield _total("hunk_span_queried_tokens", "Tokens behind exact prefixes that were looked for.", spans.num_queried)
    yield _total("hunk_span_hit_tokens", "Those of them that were found.", spans.num_hit)
    yield _total("hunk_span_evicted_entries", "Entries whose memory was needed.", spans.num_evicted)
    yield _total("hunk_span_disk_hits", "Entries that were read from the disk.", spans.num_tier_hits)
    yield _total("hunk_span_disk_misses", "Entries that the disk had lost or damaged.", spans.num_tier_misses)
    yield _total("hunk_span_disk_faults", "Entries that could not be written to the disk.", spans.num_tier_faults)


def _states(name: str, what: str, by_state: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, what, labels=["state"])
    for state, value in by_state.items():
        family.add_metric([state], value)
    return family


def _total(name: str, what: str, value: int) -> Metric:
    return CounterMetricFamily(name, what, value)
