"""OpenTelemetry traces, off by default: a span for each request, in its caller's trace, and spans of its phases."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import TracerProvider

from agent_runtime.errors import BadRequest
from agent_runtime.telemetry.metrics import Observer, RequestOutcome
from agent_runtime.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider as SdkProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's own variables; either names the receiver and switches traces on."""

PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def make_tracer_provider(environ: Mapping[str, str], *, asked: bool = False) -> SdkProvider | None:
    """Make the provider that exports spans; None if traces are off. Raises BadRequest if they are not possible.

    The exporter reads OpenTelemetry's other variables itself (headers, timeout, sampler, OTEL_SERVICE_NAME).
    """
    variable = next((name for name in ENDPOINTS if environ.get(name)), None)
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off or not (asked or variable):
        return None
    what = variable or "--traces"
    protocol = next((environ[name] for name in PROTOCOLS if environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise BadRequest(f"{what} asks for traces over {protocol}; this sends http/protobuf only", field=what)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise BadRequest(
            f"{what} asks for traces, and OpenTelemetry's exporter is not installed: pip install 'hunk-apply[otel]'",
            field=what,
        ) from None
    return make_provider(OTLPSpanExporter(), environ)


def make_provider(exporter: SpanExporter, environ: Mapping[str, str]) -> SdkProvider:
    """A provider of its own, nothing global, that hands spans to this exporter in a thread."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Span, SpanProcessor
    from opentelemetry.sdk.trace import TracerProvider as Provider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    class NoQueries(SpanProcessor):
        """A query string may hold what is nobody's business; the framework writes it onto the span."""

        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            if "url.query" in (span.attributes or {}):
                span.set_attribute("url.query", "REDACTED")

    name = environ.get("OTEL_SERVICE_NAME", "hunk")
    provider = Provider(resource=Resource.create({"service.name": name, "service.version": __version__}))
    provider.add_span_processor(NoQueries())
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class PhaseSpans(Observer):
    """Writes what a request took onto its span, and a span below it for each phase.

    Phases come with their durations only, so they are laid one behind the other, the last one ending now.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("hunk", __version__)

    def on_outcome(self, outcome: RequestOutcome) -> None:
        span = trace.get_current_span()
        if not span.is_recording():
            return
        usage = outcome.usage
        span.set_attributes(
            {
                "hunk.outcome": outcome.outcome,
                "hunk.tenant": outcome.tenant,
                "hunk.prompt_tokens": usage.prompt,
                "hunk.cached_tokens": usage.cached,
                "hunk.approximate_tokens": usage.reused_approximate,
                "hunk.completion_tokens": usage.completion,
                "hunk.forwards": usage.forwards,
            }
        )
        phases = {name: ms for name, ms in outcome.timings.items() if name != "total_ms"}
        start_ns = time.time_ns() - _to_ns(sum(phases.values()))
        for name, milliseconds in phases.items():
            end_ns = start_ns + _to_ns(milliseconds)
            self._tracer.start_span(name.removesuffix("_ms"), start_time=start_ns).end(end_ns)
            start_ns = end_ns


def _to_ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
