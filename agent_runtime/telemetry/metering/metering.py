"""All that is counted, with a registry of its own: nothing is global, so tests and services do not share it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, GCCollector, Info, ProcessCollector
from prometheus_client.exposition import choose_encoder

from agent_runtime.telemetry.metering.counters import RequestCounters
from agent_runtime.telemetry.metering.engine_look import EngineLook
from agent_runtime.telemetry.metering.engine_metrics import EngineMetrics
from agent_runtime.telemetry.metering.window import Rolling
from agent_runtime.telemetry.observer import Finished, Observer

if TYPE_CHECKING:
    from engine.engine import EngineStats


def _no_engine() -> EngineStats | None:
    return None


class Metering(Observer):
    """Feeds the counters and the rolling window, and tells whoever else has subscribed."""

    def __init__(self, look: Callable[[], EngineStats | None] = _no_engine) -> None:
        """`look` gives the engine's counts, None while no model is loaded."""
        self._registry = CollectorRegistry()
        self._look = EngineLook(look)
        self._started = time.monotonic()
        self._others: list[Observer] = []
        self.counters = RequestCounters(self._registry)
        self.window = Rolling()
        Info("hunk_build", "What runs.", registry=self._registry).info(
            {"version": version("hunk"), "python": platform.python_version(), "torch": version("torch")}
        )
        self._registry.register(EngineMetrics(self._look))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def subscribe(self, observer: Observer) -> None:
        """Tell it too."""
        self._others.append(observer)

    def finished(self, request: Finished) -> None:
        """Count it."""
        self.counters.finished(request)
        self.window.finished(request)
        for other in self._others:
            other.finished(request)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that the scraper's Accept header asks for, and its content type.

        Waits for a pass of the model: not for an event loop.
        """
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def stats(self) -> dict[str, Any]:
        """Queue, cache and rolling rates, as `GET /stats` gives them; waits for a pass of the model."""
        engine = self._look()
        queue = {"running": 0, "waiting": 0}
        if engine is not None:
            queue = {"running": engine.scheduler.num_running, "waiting": engine.scheduler.num_waiting}
        return {
            "uptime_s": round(time.monotonic() - self._started, 3),
            "queue": queue,
            "cache": None if engine is None else _cache(engine),
            "window": self.window.rates(),
        }


def _cache(engine: EngineStats) -> Mapping[str, Any]:
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
