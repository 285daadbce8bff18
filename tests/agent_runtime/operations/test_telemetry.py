"""`/metrics`, `/stats`, the log and traces of a service."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent_runtime.errors import BadRequest
from agent_runtime.telemetry.engine_metrics import CachedReports, EngineReport, report_engine, report_replica_counts
from agent_runtime.telemetry.log import JsonLines, LineWriter, TextLines, configure_logging
from agent_runtime.telemetry.metrics import Metering, RequestOutcome, SlidingWindowStats
from agent_runtime.telemetry.traces import make_provider, make_tracer_provider
from agent_runtime.types import SourceUsage, Usage
from engine.engine import EngineStats
from engine.kv_cache.page_pool import PoolStats
from engine.precision import Precision
from engine.prefix_tier import TierStats
from engine.reuse.idle_queue import IdleCounts
from engine.reuse.idle_runner import IdleStats
from engine.reuse.span_entry import SpanStats
from engine.scheduler.scheduler import SchedulerStats
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving
from tests.security.guarded import guarded

API = Path(__file__).resolve().parents[3] / "docs" / "api.md"
FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
ENGINE = EngineStats(
    precision=Precision(torch.bfloat16, torch.float32, "int8", "int8 is quick here"),
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
    tier=TierStats(num_hit=3, num_written=2),
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
        by_source={"merge": SourceUsage(30, 28, 2, 2), "output": SourceUsage(5, 0, 5, 1)},
    )  # fmt: skip
    metering.on_outcome(RequestOutcome("/apply", "t", "merged", usage, {"total_ms": 20.0}, first_token_ms=15.0))
    text = metering.render("")[0].decode()
    assert 'hunk_draft_tokens_total{outcome="accepted",source="merge"} 28.0' in text
    assert 'hunk_draft_tokens_total{outcome="rejected",source="output"} 5.0' in text
    assert 'hunk_draft_forwards_total{source="merge"} 2.0' in text
    assert 'hunk_prompt_tokens_total{kind="cached"} 60.0' in text
    assert 'hunk_prompt_tokens_total{kind="reused_approximate"} 30.0' in text
    assert 'hunk_time_to_first_token_seconds_bucket{le="0.025"} 1.0' in text
    assert 'hunk_request_duration_seconds_bucket{le="0.01",route="/apply"} 0.0' in text
    assert 'hunk_request_duration_seconds_bucket{le="0.025",route="/apply"} 1.0' in text


def test_the_engines_counts_are_there_once_there_is_an_engine() -> None:
    without = Metering().render("")[0].decode()
    assert "hunk_model_loaded 0.0" in without
    assert "hunk_kv_pages" not in without
    text = Metering(lambda: (report_engine(ENGINE),)).render("")[0].decode()
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
    text = Metering(lambda: (report_engine(ENGINE), report_replica_counts({}))).render("")[0].decode()
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
    stats = Metering(lambda: (report_engine(ENGINE),)).stats()
    assert stats["queue"] == {"running": 2, "waiting": 3}
    assert stats["cache"]["pages"] == {"in_use": 4, "cached": 5, "free": 6, "total": 15}
    assert stats["cache"]["spans"]["hit_rate"] == 0.5
    precision = {"weights": "int8", "activations": "float32", "kv": "bfloat16", "reason": "int8 is quick here"}
    assert stats["precision"] == precision


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
    now, asked, report = 0.0, 0, report_engine(ENGINE)

    def ask() -> tuple[EngineReport, ...]:
        nonlocal asked
        asked += 1
        return (report,)

    look = CachedReports(ask, lambda: now)
    assert [look() for _ in range(5)] == [(report,)] * 5
    assert asked == 1
    now = 1.0
    look()
    assert asked == 2


def test_metrics_of_replicas_are_labelled_and_their_queues_added() -> None:
    one = report_engine(ENGINE)
    metering = Metering(lambda: (replace(one, replica="a"), replace(one, replica="b")))
    text = metering.render("")[0].decode()
    assert text.count("# HELP hunk_engine_passes_total ") == 1
    for name in "ab":
        assert f'hunk_engine_passes_total{{replica="{name}"}} {float(ENGINE.num_passes)}' in text
        assert f'hunk_engine_requests{{replica="{name}",state="running"}}' in text
    stats = metering.stats()
    assert stats["queue"]["running"] == 2 * ENGINE.scheduler.num_running
    assert [each["id"] for each in stats["replicas"]] == ["a", "b"]
    assert stats["replicas"][0]["cache"] == one.status["cache"]


SECRET_FILE = "launch_code = 31415926535\nb = 2\n"
SECRET_BLOCK = "<<<<<<< SEARCH\nlaunch_code = 31415926535\n=======\nlaunch_code = 27182818284\n>>>>>>> REPLACE\n"


@contextmanager
def logging_to(stream: io.StringIO, log_format: str, level: str = "info") -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("hunk")
    before, levels = root.handlers[:], (root.level, ours.level)
    writer = configure_logging(log_format, level, stream)  # type: ignore[arg-type]
    try:
        yield
    finally:
        writer.finish(timeout_s=10)
        root.handlers[:] = before
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def test_a_request_is_one_json_line_and_nothing_of_what_was_sent_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "secret_plans.py").write_text(SECRET_FILE)
    stream = io.StringIO()
    with logging_to(stream, "json"), serving(ScriptedMerger(SECRET_FILE.replace("1", "3")), tmp_path) as url:
        asked = {"path": "secret_plans.py", "edit": SECRET_BLOCK, "instruction": "hush"}
        post(url, asked, **{"X-Request-Id": "trace-me", "Authorization": "Bearer hunk_abc"})
        post(url, {"original": SECRET_FILE, "edit": SECRET_BLOCK, "mode": "model"})
        post(url, {"original": SECRET_FILE, "edit": SECRET_BLOCK.replace("launch", "lunch"), "mode": "deterministic"})
        httpx.get(f"{url}/nowhere?token=hunk_abc")
        httpx.get(f"{url}/healthz")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/apply", 200), ("/apply", 200), ("/apply", 422), ("(none)", 404)
    ]  # fmt: skip
    first, by_model, refused, _ = lines
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert (first["level"], first["request_id"], first["tenant"]) == ("info", "trace-me", "local")
    assert first["ms"] > 0
    assert first["outcome"] == "merged"
    assert "prompt_tokens" not in first
    assert (by_model["prompt_tokens"], by_model["completion_tokens"]) == (10, 5)
    assert refused["outcome"] == "edit-refused"
    for secret in ("launch", "31415926535", "27182818284", "hush", "hunk_abc", "secret_plans", "nowhere", "a = "):
        assert secret not in stream.getvalue()


def test_wrong_tokens_are_in_the_log_wherever_they_are_tried_and_methods_are_cut(tmp_path: Path) -> None:
    stream = io.StringIO()
    with logging_to(stream, "json"), guarded(tmp_path, wanted={"one": ("acme", ("read",))}) as service:
        for path in ("/stats", "/metrics"):
            service.ask("GET", path, "one")
            service.ask("GET", path, headers={"authorization": "Bearer hunk_nonsense"})
        service.ask("M" * 2000, "/apply", "one")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["method"], line["status"]) for line in lines] == [("GET", 401), ("GET", 401), ("M" * 16, 405)]


def test_a_terminal_gets_key_and_value() -> None:
    stream = io.StringIO()
    with logging_to(stream, "text", "debug"), serving(None) as url:
        httpx.get(f"{url}/healthz")
    assert re.search(
        r"^\S+Z debug   request request_id=\w+ tenant=local method=GET route=/healthz status=200 ms=[\d.]+$",
        stream.getvalue(),
        re.MULTILINE,
    )


def test_a_bug_is_logged_with_its_place_and_without_its_message() -> None:
    stream = io.StringIO()
    with logging_to(stream, "json"):
        try:
            {}["a line of somebody's source"]
        except KeyError:
            logging.getLogger("others").exception("Exception in ASGI application")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["error"]) == ("error", "others", "KeyError")
    assert line["stack"][-1].split(":")[0].endswith("test_telemetry.py")
    assert "somebody" not in stream.getvalue()


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.text(), max_size=3))
def test_an_event_is_one_line_whatever_it_holds(message: str, fields: dict[str, str]) -> None:
    record = logging.LogRecord("hunk.x", logging.INFO, "", 0, "%s", (message,), None)
    record.fields = fields
    for formatter in (JsonLines(), TextLines()):
        assert not re.search(r"[\n\r\x85\u2028\u2029]", formatter.format(record)) or isinstance(formatter, JsonLines)
        assert "\n" not in formatter.format(record)
    assert json.loads(JsonLines().format(record))["message"] == message


def test_who_logs_does_not_wait_for_a_reader_and_lost_lines_are_counted() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as full, os.fdopen(reading) as reader:
        writer = LineWriter(full, max_waiting=10)
        writer.setFormatter(JsonLines())
        log = logging.Logger("hunk.test")
        log.addHandler(writer)
        for _ in range(2000):  # a pipe holds 64 KiB: whoever wrote into it himself would hang here
            log.warning("x" * 100)

        def end() -> None:
            while not writer.finish(timeout_s=0.1):
                pass
            full.close()

        ending = threading.Thread(target=end)
        ending.start()
        events = [json.loads(line) for line in reader]
        ending.join()
    written = sum(event["message"] != "lines were lost" for event in events)
    lost = sum(event.get("lines", 0) for event in events)
    assert written < 2000
    assert written + lost == 2000


@pytest.mark.parametrize("level", ["warning", "error"])
def test_the_level_leaves_out_what_is_below_it(level: str) -> None:
    stream = io.StringIO()
    with logging_to(stream, "json", level), serving(None) as url:
        assert post(url, {"original": SECRET_FILE, "edit": SECRET_BLOCK}).status_code == 200
        assert post(url, {"original": SECRET_FILE, "edit": SECRET_BLOCK, "mode": "model"}).status_code == 503
    lines = [json.loads(line)["status"] for line in stream.getvalue().splitlines()]
    assert lines == ([503] if level == "warning" else [])


TRACED_FILE = "launch_code = 1\nb = 2\n"
TRACED_BLOCK = "<<<<<<< SEARCH\nlaunch_code = 1\n=======\nlaunch_code = 3\n>>>>>>> REPLACE\n"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = make_provider(exporter, {"OTEL_SERVICE_NAME": "edits"})
    yield made
    made.shutdown()


def test_a_request_is_a_span_of_its_callers_trace_with_its_phases_below_it(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with serving(ScriptedMerger(TRACED_FILE), change=lambda service: replace(service, traces=provider)) as url:
        post(url, {"original": TRACED_FILE, "edit": TRACED_BLOCK}, traceparent=PARENT)
        post(url, {"original": TRACED_FILE, "edit": TRACED_BLOCK, "mode": "model"})
    provider.force_flush()
    spans = exporter.get_finished_spans()
    servers = [span for span in spans if span.kind == SpanKind.SERVER]
    assert [span.name for span in servers] == ["POST /apply"] * 2
    first, second = servers
    assert f"{first.context.trace_id:032x}" == PARENT.split("-")[1]
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == PARENT.split("-")[2]
    assert second.parent is None
    assert first.resource.attributes["service.name"] == "edits"
    assert (attributes(first)["hunk.outcome"], attributes(first)["hunk.forwards"]) == ("merged", 0)
    assert (attributes(second)["hunk.prompt_tokens"], attributes(second)["hunk.forwards"]) == (10, 2)

    phases = [span for span in spans if span.parent is not None and span.parent.span_id == first.context.span_id]
    assert [span.name for span in phases] == ["parse", "merge", "verify"]
    assert first.start_time is not None
    assert first.end_time is not None
    for phase, behind in zip(phases, [*phases[1:], None], strict=True):
        assert phase.start_time is not None
        assert phase.end_time is not None
        assert first.start_time <= phase.start_time <= phase.end_time <= first.end_time
        assert behind is None or phase.end_time == behind.start_time


def test_nothing_that_was_sent_is_on_a_span(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    with serving(ScriptedMerger(TRACED_FILE), change=lambda service: replace(service, traces=provider)) as url:
        asked = {"original": TRACED_FILE, "edit": TRACED_BLOCK, "path": "plans.py"}
        assert httpx.post(f"{url}/apply?key=hunk_secret", json=asked).status_code == 200
        post(url, {"original": TRACED_FILE, "edit": TRACED_BLOCK.replace("launch", "lunch"), "mode": "deterministic"})
    provider.force_flush()
    assert len(exporter.get_finished_spans()) > 2
    for span in exporter.get_finished_spans():
        for word in ("launch", "lunch", "plans", "hunk_secret"):
            assert word not in span.to_json()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_SERVICE_NAME": "x"},
    ],
)
def test_there_are_none_where_nobody_says_where_they_go(environ: dict[str, str]) -> None:
    assert make_tracer_provider(environ) is None


@pytest.mark.parametrize(("environ", "asked"), [(ENDPOINT, False), ({}, True)])
def test_an_endpoint_or_the_setting_turns_them_on(environ: dict[str, str], asked: bool) -> None:
    made = make_tracer_provider(environ, asked=asked)
    assert made is not None
    made.shutdown()


def test_what_is_missing_is_said_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(BadRequest, match=r"OTEL_EXPORTER_OTLP_ENDPOINT asks .* pip install 'hunk-apply\[otel\]'"):
        make_tracer_provider(ENDPOINT)


def test_a_protocol_that_is_not_spoken_is_named() -> None:
    with pytest.raises(BadRequest, match="grpc"):
        make_tracer_provider(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
