"""The service's routes: validate, hand on, answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent_runtime.apply import Applier
from agent_runtime.errors import HunkError, Unsupported
from agent_runtime.http.body_limit import BodyLimit
from agent_runtime.http.guard import OwnHostsOnly
from agent_runtime.http.leaving import Departure
from agent_runtime.http.schema import ApplyBody, fault_of_validation
from agent_runtime.http.work import Work, work_of
from agent_runtime.limits import MAX_EDIT_BYTES, MAX_FILE_BYTES
from agent_runtime.model_slot import ModelSlot
from agent_runtime.shapes import PROBLEM_TYPE, problem_of, result_to_json
from agent_runtime.types import ApplyResult
from agent_runtime.workspace import Workspace

MAX_BODY_BYTES = 6 * (MAX_FILE_BYTES + MAX_EDIT_BYTES)
"""JSON may spell a byte as six (`\\u0001`); what the fields hold is checked after decoding."""

MAX_APPLIES = 1024
"""Edits that are worked on at once, a thread each; of those the model takes no more than its queue holds (429)."""

RETRY_AFTER = {429: "1", 503: "5"}
"""Seconds until it is worth another try."""

HTTP_KINDS = {404: "no-such-route", 405: "no-such-route", 413: "too-large"}
"""Problem kinds of what the framework refuses before a route is reached."""


@dataclass(frozen=True, slots=True)
class Service:
    """The finished parts that the routes use."""

    applier: Applier
    model: ModelSlot
    workspace: Workspace | None


def build_app(service: Service, *, hosts: Iterable[str] = (), on_start: Callable[[], None] = lambda: None) -> FastAPI:
    """The ASGI application. `hosts` are further names under which it may be called; `on_start` runs at startup."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        on_start()
        yield
        await run_sync(service.model.close)

    threads = CapacityLimiter(MAX_APPLIES)
    app = FastAPI(title="Hunk", summary="Applies code edits.", lifespan=lifespan)
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES)
    app.add_middleware(OwnHostsOnly, hosts=hosts)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(HunkError, _fault)
    app.add_exception_handler(Exception, _bug)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process answers, whatever else it does."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> dict[str, str]:
        """The model is loaded; 503 until it is."""
        return {"status": "ready", "model": service.model.get().name}

    @app.post("/apply")
    async def apply(body: ApplyBody, request: Request) -> dict[str, Any]:
        """Merge an edit into its file, or into several files: all or none."""
        work = await run_sync(_prepare, service, body, limiter=threads)
        return result_to_json(await _run(work, request, threads))

    return app


def _prepare(service: Service, body: ApplyBody) -> Work:
    if body.model is not None and body.model != service.model.name:
        raise Unsupported(f"this service runs {service.model.name!r}, not {body.model!r}", field="model")
    return work_of(service.applier, service.workspace, body)


async def _run(work: Work, request: Request, threads: CapacityLimiter) -> ApplyResult:
    """Apply in a thread, so that other requests are answered meanwhile; stop when the client hangs up."""
    departure = Departure()
    watching = asyncio.create_task(departure.wait_for(request))
    try:
        return await run_sync(work, departure, limiter=threads)
    finally:  # also when the server shuts down
        watching.cancel()
        departure.happen()


async def _malformed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return _problem(problem_of(fault_of_validation(list(error.errors()))))


async def _fault(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HunkError)
    return _problem(problem_of(error))


async def _bug(_: Request, error: Exception) -> JSONResponse:
    """The server logs the traceback; the client gets a problem as from everywhere else."""
    return _problem(problem_of(HunkError(f"a fault of this service ({type(error).__name__}); its log has the details")))


async def _refused_by_framework(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = HTTP_KINDS.get(error.status_code, "malformed")
    return _problem(
        {"type": PROBLEM_TYPE + kind, "title": error.detail, "status": error.status_code, "detail": error.detail}
    )


def _problem(problem: dict[str, Any]) -> JSONResponse:
    status = problem["status"]
    headers = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else None
    return JSONResponse(problem, status, headers, media_type="application/problem+json")
