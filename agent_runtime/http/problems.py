"""Turns every fault into RFC 9457 problem details, the framework's own too."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from agent_runtime.errors import HunkError
from agent_runtime.http.schema import fault_of_validation
from agent_runtime.shapes import PROBLEM_TYPE, problem_of

RETRY_AFTER = {429: "1", 503: "5"}
"""Seconds until it is worth another try."""

HTTP_KINDS = {404: "no-such-route", 405: "no-such-route", 413: "too-large"}
"""Problem kinds of what the framework refuses before a route is reached."""


def add_problems(app: FastAPI) -> None:
    """Have the application answer faults with problems."""
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(HunkError, _fault)
    app.add_exception_handler(Exception, _bug)


def problem_response(problem: dict[str, Any]) -> JSONResponse:
    """A problem as the answer to a request."""
    status = problem["status"]
    headers = {"Retry-After": RETRY_AFTER[status]} if status in RETRY_AFTER else None
    return JSONResponse(problem, status, headers, media_type="application/problem+json")


async def _malformed(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return problem_response(problem_of(fault_of_validation(list(error.errors()))))


async def _fault(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HunkError)
    return problem_response(problem_of(error))


async def _bug(_: Request, error: Exception) -> JSONResponse:
    """The server logs the traceback; the client gets a problem as from everywhere else."""
    fault = HunkError(f"a fault of this service ({type(error).__name__}); its log has the details")
    return problem_response(problem_of(fault))


async def _refused_by_framework(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = HTTP_KINDS.get(error.status_code, "malformed")
    return problem_response(
        {"type": PROBLEM_TYPE + kind, "title": error.detail, "status": error.status_code, "detail": error.detail}
    )
