"""Traces: a request is a span that continues its caller's trace, with its phases below it; off unless asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from agent_runtime.errors import BadRequest
from agent_runtime.telemetry.traces import make_tracer_provider, provider_for
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving

FILE = "launch_code = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\nlaunch_code = 1\n=======\nlaunch_code = 3\n>>>>>>> REPLACE\n"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = provider_for(exporter, {"OTEL_SERVICE_NAME": "edits"})
    yield made
    made.shutdown()


def test_a_request_is_a_span_of_its_callers_trace_with_its_phases_below_it(
    exporter: InMemorySpanExporter, provider: TracerProvider
) -> None:
    with serving(ScriptedMerger(FILE), change=lambda service: replace(service, traces=provider)) as url:
        post(url, {"original": FILE, "edit": BLOCK}, traceparent=PARENT)
        post(url, {"original": FILE, "edit": BLOCK, "mode": "model"})
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
    with serving(ScriptedMerger(FILE), change=lambda service: replace(service, traces=provider)) as url:
        asked = {"original": FILE, "edit": BLOCK, "path": "plans.py"}
        assert httpx.post(f"{url}/apply?key=hunk_secret", json=asked).status_code == 200
        post(url, {"original": FILE, "edit": BLOCK.replace("launch", "lunch"), "mode": "deterministic"})
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
    with pytest.raises(BadRequest, match=r"OTEL_EXPORTER_OTLP_ENDPOINT asks .* pip install 'hunk\[otel\]'"):
        make_tracer_provider(ENDPOINT)


def test_a_protocol_that_is_not_spoken_is_named() -> None:
    with pytest.raises(BadRequest, match="grpc"):
        make_tracer_provider(ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
