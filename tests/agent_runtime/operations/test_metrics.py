"""`/metrics` and `/stats` say what happened, whoever asks in whatever format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent_runtime.telemetry.metrics import CachedEngineStats, Metering, RequestOutcome, SlidingWindowStats
from agent_runtime.types import SourceUsage, Usage
from engine.engine import EngineStats
from engine.kv_cache.page_pool import PoolStats
from engine.reuse.idle_queue import IdleCounts
from engine.reuse.idle_runner import IdleStats
from engine.reuse.span_entry import SpanStats
from engine.scheduler.scheduler import SchedulerStats
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving

API = Path(__file__).resolve().parents[3] / "docs" / "api.md"
FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
ENGINE = EngineStats(
    scheduler=SchedulerStats(num_waiting=3, num_running=2, num_preempted=1),
    kv=PoolStats(
        num_queries=100, num_hits=40, rolling_hit_rate=0.5, num_evicted=7, num_in_use=4, num_cached=5, num_free=6
    ),
    num_passes=99,
    by_source={},
    idle=IdleStats(1, IdleCounts(rebuilt=2, rebuilt_tokens=300, audited=1), {}),
    spans=SpanStats(
        num_queried=50, num_hit=25, num_evicted=0, num_entries=8, num_tokens=160, num_bytes=4096, num_slots=1000
    ),
)


def samples(url: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of /metrics by name and labels."""
    families = parse_text(httpx.get(f"{url}/metrics").text)
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def value(url: str, name: str, **labels: str) -> float:
    return samples(url).get((name, frozenset(labels.items())), 0.0)


@pytest.fixture
def url() -> Iterator[str]:
    with serving(ScriptedMerger("a = 3\nb = 2\n")) as url:
        yield url


def test_requests_edits_and_tokens_are_counted_by_what_became_of_them(url: str) -> None:
    for _ in range(2):
        assert post(url, {"original": FILE, "edit": BLOCK}).json()["status"] == "merged"
    assert post(url, {"original": FILE, "edit": BLOCK, "mode": "model"}).json()["method"] == "model"
    assert post(url, {"original": FILE, "edit": BLOCK.replace("a = 1", "z"), "mode": "deterministic"}).is_error
    assert post(url, {"original": 1}).status_code == 400
    assert httpx.get(f"{url}/no/such/path").status_code == 404

    assert value(url, "hunk_requests_total", route="/apply", outcome="merged") == 3
    assert value(url, "hunk_requests_total", route="/apply", outcome="edit-refused") == 1
    assert value(url, "hunk_edits_total", method="deterministic", certainty="certain") == 2
    assert value(url, "hunk_edits_total", method="model", certainty="model") == 1
    assert value(url, "hunk_prompt_tokens_total", kind="recomputed") == 10
    assert value(url, "hunk_completion_tokens_total") == 5
    assert value(url, "hunk_forwards_total") == 2
    assert value(url, "hunk_request_duration_seconds_count", route="/apply") == 3
    assert value(url, "hunk_http_requests_total", method="POST", route="/apply", status="200") == 3
    assert value(url, "hunk_http_requests_total", method="POST", route="/apply", status="422") == 1
    assert value(url, "hunk_http_requests_total", method="POST", route="/apply", status="400") == 1
    assert value(url, "hunk_http_requests_total", method="GET", route="(none)", status="404") == 1
    assert value(url, "hunk_http_requests_in_flight") == 1, "this one"
    assert value(url, "process_resident_memory_bytes") > 1e6


def test_the_scraper_gets_the_format_that_it_asks_for(url: str) -> None:
    plain = httpx.get(f"{url}/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    open_metrics = httpx.get(f"{url}/metrics", headers=accept)
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(open_metrics.text)}
    assert {"hunk_requests", "hunk_build", "hunk_model_loaded"} <= names


def test_draft_tokens_are_split_by_source_and_what_became_of_them() -> None:
    metering = Metering()
    usage = Usage(
        prompt=100, cached=60, reused_approximate=30, recomputed=10, forwards=2, completion=40,
        by_source={"merge": SourceUsage(30, 28, 2), "output": SourceUsage(5, 0, 5)},
    )  # fmt: skip
    metering.on_outcome(RequestOutcome("/apply", "t", "merged", usage, {"total_ms": 20.0}, first_token_ms=15.0))
    text = metering.render("")[0].decode()
    assert 'hunk_draft_tokens_total{outcome="accepted",source="merge"} 28.0' in text
    assert 'hunk_draft_tokens_total{outcome="rejected",source="output"} 5.0' in text
    assert 'hunk_prompt_tokens_total{kind="cached"} 60.0' in text
    assert 'hunk_prompt_tokens_total{kind="reused_approximate"} 30.0' in text
    assert 'hunk_time_to_first_token_seconds_bucket{le="0.025"} 1.0' in text
    assert 'hunk_request_duration_seconds_bucket{le="0.01",route="/apply"} 0.0' in text
    assert 'hunk_request_duration_seconds_bucket{le="0.025",route="/apply"} 1.0' in text


def test_the_engines_counts_are_there_once_there_is_an_engine() -> None:
    without = Metering().render("")[0].decode()
    assert "hunk_model_loaded 0.0" in without
    assert "hunk_kv_pages" not in without
    text = Metering(lambda: ENGINE).render("")[0].decode()
    for line in (
        "hunk_model_loaded 1.0",
        'hunk_engine_requests{state="waiting"} 3.0',
        'hunk_engine_requests{state="running"} 2.0',
        'hunk_kv_pages{state="cached"} 5.0',
        "hunk_kv_hit_tokens_total 40.0",
        "hunk_span_store_bytes 4096.0",
        "hunk_span_hit_tokens_total 25.0",
        "hunk_idle_rebuilt_tokens_total 300.0",
        "hunk_engine_passes_total 99.0",
    ):
        assert line in text.splitlines()


def test_names_follow_the_convention_and_stand_in_the_document() -> None:
    text = Metering(lambda: ENGINE).render("")[0].decode()
    others = re.compile(r"process_|python_gc_|.*_created$")  # of the library
    families = [family for family in parse_text(text) if not others.match(family.name)]
    documented = set(re.findall(r"^\| `(hunk_\w+)`", API.read_text(encoding="utf-8"), re.MULTILINE))
    shown = set()
    for family in families:
        assert re.fullmatch(r"hunk_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|milliseconds|kb|mb|minutes)$", family.name), "base units only"
        shown.add(family.name + {"counter": "_total", "info": ""}.get(family.type, ""))
    assert shown == documented


def test_stats_are_null_where_there_is_nothing_to_tell_and_right_where_there_is(url: str) -> None:
    fresh = httpx.get(f"{url}/stats").json()
    assert fresh["model"] == {"name": "scripted", "ready": True}
    assert fresh["cache"] is None
    assert fresh["window"]["prefix_hit_rate"] is None
    assert fresh["window"]["total_ms"] is None
    post(url, {"original": FILE, "edit": BLOCK})
    post(url, {"original": FILE, "edit": BLOCK, "mode": "model"})
    window = httpx.get(f"{url}/stats").json()["window"]
    assert (window["requests"], window["outcomes"]) == (2, {"merged": 2})
    assert (window["prefix_hit_rate"], window["approximate_share"], window["tokens_per_forward"]) == (0.0, 0.0, 2.5)
    assert window["total_ms"]["p50"] > 0


def test_stats_show_the_engines_queue_and_cache() -> None:
    stats = Metering(lambda: ENGINE).stats()
    assert stats["queue"] == {"running": 2, "waiting": 3}
    assert stats["cache"]["pages"] == {"in_use": 4, "cached": 5, "free": 6, "total": 15}
    assert stats["cache"]["spans"]["hit_rate"] == 0.5


def test_the_window_forgets_what_is_older() -> None:
    now = 0.0
    window = SlidingWindowStats(window_s=10, max_requests=3, clock=lambda: now)
    usage = Usage(prompt=10, cached=4, reused_approximate=2, recomputed=4, completion=6, forwards=2)
    for outcome in ("noop", "merged", "merged", "rejected"):
        window.on_outcome(RequestOutcome("/apply", "t", outcome, usage, {"total_ms": 5.0}))
        now += 2
    rates = window.compute_rates()
    assert rates["outcomes"] == {"merged": 2, "rejected": 1}, "no more than so many"
    assert (rates["prefix_hit_rate"], rates["approximate_share"], rates["tokens_per_forward"]) == (0.4, 0.2, 3.0)
    now = 15.0
    assert window.compute_rates()["outcomes"] == {"rejected": 1}, "and no longer than so long"
    assert window.compute_rates()["total_ms"] == {"p50": 5.0, "p99": 5.0}


def test_many_looks_ask_the_engine_once() -> None:
    now, asked = 0.0, 0

    def ask() -> EngineStats:
        nonlocal asked
        asked += 1
        return ENGINE

    look = CachedEngineStats(ask, lambda: now)
    assert [look() for _ in range(5)] == [ENGINE] * 5
    assert asked == 1
    now = 1.0
    look()
    assert asked == 2
