"""Turns every fault into RFC 9457 problem details, the framework's own too."""

from __future__ import annotations

import json
from math import ceil

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from agent_runtime.errors import (
    BadRequest,
    HunkError,
    MethodNotAllowed,
    NoSuchRoute,
    TooLarge,
    Unauthorized,
    UnsupportedMedia,
)
from agent_runtime.http.openai.errors import error_response, is_openai
from agent_runtime.http.request_id import HEADER, request_id
from agent_runtime.http.schema import fault_of_validation
from agent_runtime.shapes import problem_of

PROBLEM_MEDIA = "application/problem+json"


def add_problems(app: FastAPI) -> None:
    """Have the application answer faults with problems."""
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.add_exception_handler(HunkError, _fault)
    app.add_exception_handler(Exception, _bug)


def problem_response(fault: HunkError) -> Response:
    """A fault as the answer to a request."""
    body = json.dumps(problem_of(fault))  # in ASCII: what was sent may hold a lone surrogate, and is quoted
    return Response(body, fault.http_status, headers_of(fault), media_type=PROBLEM_MEDIA)


def headers_of(fault: HunkError) -> dict[str, str]:
    """What a problem says in headers."""
    headers = {}
    if fault.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(fault.retry_after_s)))
    if isinstance(fault, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def fault_of_bug(error: Exception) -> HunkError:
    """What the sender is told of an error that nobody foresaw; the log has it all."""
    return HunkError(f"a fault of this service ({type(error).__name__}); its log has the details")


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sent = request.headers.get("content-type", "")
    if isinstance(error.body, bytes) and error.body:  # the framework reads nothing but JSON
        what = f"{sent!r} is" if sent else "there is no Content-Type, and nothing else is"
        return problem_response(UnsupportedMedia(f"{what} not taken here: send JSON, as application/json"))
    return problem_response(fault_of_validation(list(error.errors())))


async def _fault(_: Request, error: Exception) -> Response:
    assert isinstance(error, HunkError)
    return problem_response(error)


async def _bug(request: Request, error: Exception) -> Response:
    """The server logs the traceback; the client gets a problem as from everywhere else.

    This answer does not pass the middleware, so it gets the request's id here.
    """
    fault = fault_of_bug(error)
    response = error_response(fault) if is_openai(request.scope) else problem_response(fault)
    response.headers[HEADER] = request_id(request.scope)
    return response


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case 404:
            return problem_response(NoSuchRoute(f"there is no {path}; /openapi.json lists what there is"))
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            response = problem_response(MethodNotAllowed(f"{path} does not take {request.method}, but {allowed}"))
            response.headers["Allow"] = allowed
            return response
        case 413:
            return problem_response(TooLarge(error.detail))
        case _:
            return problem_response(_unreadable(error))


def _unreadable(error: HTTPException) -> HunkError:
    """What is wrong with a body that the framework gave up on: it says it only by the cause."""
    match error.__cause__:
        case HunkError() as cause:
            return cause
        case RecursionError():
            return BadRequest("the body's JSON is nested too deeply; no request needs more than a few levels")
        case UnicodeDecodeError() as cause:
            return BadRequest(f"the body is not valid JSON: it is not UTF-8 (byte {cause.start})")
        case ValueError() as cause:  # an integer of thousands of digits
            return BadRequest(f"the body is not valid JSON: {cause}")
    return BadRequest(f"the request cannot be read: {error.detail}")
