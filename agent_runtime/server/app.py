"""Puts the routes, the middleware and the problems together to one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from agent_runtime.files import MAX_EDIT_BYTES, MAX_FILE_BYTES
from agent_runtime.server.auth import BearerTokenMiddleware, HostGuardMiddleware
from agent_runtime.server.middleware import (
    AdmissionMiddleware,
    RecordObserver,
    RequestIdMiddleware,
    RequestLogMiddleware,
)
from agent_runtime.server.openapi import ANY_PROBLEM, DescribedApp
from agent_runtime.server.problems import OpenAIErrorMiddleware, add_problems
from agent_runtime.server.request_body import BodyLimitMiddleware
from agent_runtime.server.routes import ROUTES
from agent_runtime.server.service import Service
from agent_runtime.server.token_file import LiveTokens
from agent_runtime.telemetry.traces import PhaseSpans
from agent_runtime.version import __version__

MAX_BODY_BYTES = 6 * (MAX_FILE_BYTES + MAX_EDIT_BYTES)
"""JSON may spell a byte as six (`\\u0001`); what the fields hold is checked after decoding."""


def build_app(
    service: Service,
    *,
    hosts: Iterable[str] = (),
    tokens: LiveTokens | None = None,
    on_start: Callable[[], None] = lambda: None,
) -> FastAPI:
    """The ASGI application.

    `hosts` are further names under which it may be called, `tokens` those that are asked for; without any, everybody
    who reaches it may do everything. `on_start` runs at startup.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        on_start()
        yield
        await run_sync(service.model.close)

    app = DescribedApp(
        title="Hunk",
        summary="Applies code edits with a language model at the price of what changed.",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from elsewhere; `docs_page` makes ours
        redoc_url=None,
        redirect_slashes=False,
        responses=ANY_PROBLEM,
        telemetry=_make_telemetry_config(service),
    )
    app.add_middleware(BodyLimitMiddleware, max_bytes=MAX_BODY_BYTES, drain=service.drain)
    app.add_middleware(
        AdmissionMiddleware,
        tenants=service.tenants,
        queue=service.queue,
        drain=service.drain,
        metering=service.metering,
    )
    if tokens is not None:
        app.add_middleware(BearerTokenMiddleware, tokens=tokens)
    app.add_middleware(HostGuardMiddleware, hosts=hosts)
    app.add_middleware(OpenAIErrorMiddleware)  # outside of all that refuse
    app.add_middleware(RequestLogMiddleware, metering=service.metering)
    app.add_middleware(RequestIdMiddleware)  # the outermost: what the others refuse has an id, too
    add_problems(app)
    service.metering.subscribe(service.tenants)
    service.metering.subscribe(RecordObserver())
    if service.traces is not None:
        service.metering.subscribe(PhaseSpans(service.traces))
    for routes in ROUTES:
        app.include_router(routes(service))
    return app


def _make_telemetry_config(service: Service) -> TelemetryConfig:
    """The framework's own spans, and none of its metrics and logs, which we have, or which quote what was sent."""
    return {
        "tracing": service.traces is not None,
        "tracer_provider": service.traces,
        "metrics": False,
        "logs": False,
        "operation_spans": False,
        "auto_configure": False,
    }
