"""Faults as RFC 9457 problem details, or below /v1 in OpenAI's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import (
    BadRequest,
    HunkError,
    MethodNotAllowed,
    NoSuchRoute,
    TooLarge,
    Unauthorized,
    UnknownModel,
    Unsupported,
    UnsupportedMedia,
)
from agent_runtime.serialization import PROBLEM_TYPE, problem_to_json
from agent_runtime.server.request_id import HEADER, request_id
from agent_runtime.server.schemas import fault_of_validation

PREFIX = "/v1/"

CODES = {
    "busy": "rate_limit_exceeded",
    "no-such-route": "unknown_url",
    "too-large": "context_length_exceeded",
    "too-many-requests": "rate_limit_exceeded",
    "unauthorized": "invalid_api_key",
    "unknown-model": "model_not_found",
    "unsupported": "unsupported_parameter",
}
"""OpenAI's codes of these kinds of problems; other kinds keep our name, with underscores."""

STATUSES = {TooLarge.kind: 400, Unsupported.kind: 400, UnknownModel.kind: 404}
"""Kinds that have another HTTP status at OpenAI."""

PARAMS = {UnknownModel.kind: "model"}
"""OpenAI's `param` of problems that do not name a field."""

MAX_TOLD = 5
"""Reasons that the message tells; the others stand in `hunk`."""

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_MEMBERS = ("type", "title", "status", "detail", "field")
"""Fields of a problem that OpenAI's error has under other names."""


def error_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    """A problem as OpenAI's error object; what it has beyond that stands in `hunk`."""
    kind = str(problem["type"]).removeprefix(PROBLEM_TYPE)
    status = status_of(problem)
    error: dict[str, Any] = {
        "message": "\n\n".join([problem["detail"], *_advice(problem.get("reasons", []))]),
        "type": TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": problem.get("field", PARAMS.get(kind)),
        "code": CODES.get(kind, kind.replace("-", "_")),
    }
    more = {name: value for name, value in problem.items() if name not in _MEMBERS}
    return {"error": error | ({"hunk": more} if more else {})}


def _advice(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what to send instead of a refused edit: many clients show only the message of an error."""
    told = [reason[part] for reason in reasons[:MAX_TOLD] for part in ("nearest", "suggestion")]
    return [text for text in told if text]


def status_of(problem: Mapping[str, Any]) -> int:
    """With which status a problem is answered below /v1."""
    status: int = problem["status"]
    return STATUSES.get(str(problem["type"]).removeprefix(PROBLEM_TYPE), status)


def is_openai(scope: Scope) -> bool:
    """Return whether a request is answered in OpenAI's shape."""
    return scope["type"] == "http" and str(scope["path"]).startswith(PREFIX)


def error_response(fault: HunkError) -> Response:
    """A fault as OpenAI's error."""
    problem = problem_to_json(fault)
    return Response(_encode(problem), status_of(problem), media_type="application/json")


class OpenAIErrors:
    """Middleware: below /v1 a problem leaves as OpenAI's error, with its headers; all else passes as it is.

    It stands outermost, so that what other middleware refuses has the shape, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and rewrite its answer where that is a problem."""
        if not is_openai(scope):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _Rewriting(send).send)


class _Rewriting:
    """One answer: a problem is held back until it is whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Take the next part of the answer."""
        if message["type"] == "http.response.start" and _is_problem(message):
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_rewritten(self._start)

    async def _send_rewritten(self, start: Message) -> None:
        problem = json.loads(self._body)
        body = _encode(problem)
        headers = MutableHeaders(scope=start)
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
        await self._send({**start, "status": status_of(problem)})
        await self._send({"type": "http.response.body", "body": body})


def _encode(problem: Mapping[str, Any]) -> bytes:
    return json.dumps(error_of(problem)).encode()  # in ASCII: what was sent may hold a lone surrogate, and is quoted


def _is_problem(start: Message) -> bool:
    return MutableHeaders(scope=start).get("content-type", "").startswith("application/problem+json")


PROBLEM_MEDIA = "application/problem+json"


def add_problems(app: FastAPI) -> None:
    """Have the application answer faults with problems."""
    app.add_exception_handler(RequestValidationError, _answer_malformed)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(HunkError, _fault)
    app.add_exception_handler(Exception, _bug)


def problem_response(fault: HunkError) -> Response:
    """A fault as the answer to a request."""
    body = json.dumps(problem_to_json(fault))  # in ASCII: what was sent may hold a lone surrogate, and is quoted
    return Response(body, fault.http_status, headers_of(fault), media_type=PROBLEM_MEDIA)


def headers_of(fault: HunkError) -> dict[str, str]:
    """Return the headers of a problem."""
    headers = {}
    if fault.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(fault.retry_after_s)))
    if isinstance(fault, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def fault_of_bug(error: Exception) -> HunkError:
    """Return the error that stands for an unexpected one in the answer: without its text, which only the log has."""
    return HunkError(f"a fault of this service ({type(error).__name__}); its log has the details")


async def _answer_malformed(request: Request, error: Exception) -> Response:
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


async def _answer_http_error(request: Request, error: Exception) -> Response:
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
    """Return the error of a body that the framework could not parse: it gives only the cause."""
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
