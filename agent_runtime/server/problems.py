"""Answers errors as problem details (RFC 9457), and below /v1 as OpenAI's errors."""

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
from agent_runtime.request_context import REQUEST_ID_HEADER, REQUEST_ID_KEY
from agent_runtime.serialization import PROBLEM_TYPE, problem_to_json
from agent_runtime.server.schemas import convert_validation_error

PREFIX = "/v1/"

OPENAI_CODES = {
    "busy": "rate_limit_exceeded",
    "no-such-route": "unknown_url",
    "too-large": "context_length_exceeded",
    "too-many-requests": "rate_limit_exceeded",
    "unauthorized": "invalid_api_key",
    "unknown-model": "model_not_found",
    "unsupported": "unsupported_parameter",
}
"""OpenAI's error codes by kind of problem; other kinds keep their own name, with underscores."""

OPENAI_STATUSES = {TooLarge.kind: 400, Unsupported.kind: 400, UnknownModel.kind: 404}
"""HTTP statuses by kind of problem, where OpenAI's differs from ours."""

OPENAI_PARAMS = {UnknownModel.kind: "model"}
"""OpenAI's `param` by kind, of problems without a field."""

UNSERVED = {
    "/v1/completions": "OpenAI's completions of a prompt are not served; send a chat",
    "/v1/embeddings": "embeddings are not served; what is served are chats",
    "/v1/messages": "Anthropic's messages are not served; send a chat in OpenAI's format",
    "/v1/responses": "OpenAI's responses are not served; send a chat",
}
"""Routes that clients of OpenAI's or Anthropic's format may ask for, and what to do instead."""

MAX_REASONS = 5
"""Maximum reasons in the message; `hunk` has all."""

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_MEMBERS = ("type", "title", "status", "detail", "field")
"""Fields of a problem that OpenAI's error has under other names; the others go to `hunk`."""


def to_openai_error(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem as OpenAI's error object; fields that OpenAI does not have are in `hunk`."""
    kind = str(problem["type"]).removeprefix(PROBLEM_TYPE)
    status = to_openai_status(problem)
    error: dict[str, Any] = {
        "message": "\n\n".join([problem["detail"], *_list_advice(problem.get("reasons", []))]),
        "type": OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": problem.get("field", OPENAI_PARAMS.get(kind)),
        "code": OPENAI_CODES.get(kind, kind.replace("-", "_")),
    }
    more = {name: value for name, value in problem.items() if name not in _MEMBERS}
    return {"error": error | ({"hunk": more} if more else {})}


def _list_advice(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how to correct a refused edit: many clients show only the message of an error."""
    told = [reason[part] for reason in reasons[:MAX_REASONS] for part in ("nearest", "suggestion")]
    return [text for text in told if text]


def to_openai_status(problem: Mapping[str, Any]) -> int:
    """Return the HTTP status of a problem below /v1."""
    status: int = problem["status"]
    return OPENAI_STATUSES.get(str(problem["type"]).removeprefix(PROBLEM_TYPE), status)


def is_openai(scope: Scope) -> bool:
    """Return whether a request is for a route in OpenAI's format."""
    return scope["type"] == "http" and str(scope["path"]).startswith(PREFIX)


def make_error_response(fault: HunkError) -> Response:
    """Return a response with OpenAI's error."""
    problem = problem_to_json(fault)
    return Response(_encode(problem), to_openai_status(problem), media_type="application/json")


class OpenAIErrorMiddleware:
    """Middleware that turns problems of routes below /v1 into OpenAI's errors; headers are kept.

    It is outside all middleware that refuses requests, so that their problems are converted too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and convert its answer if that is a problem."""
        if not is_openai(scope):
            await self._app(scope, receive, send)
            return
        await self._app(scope, receive, _ProblemRewriter(send).send)


class _ProblemRewriter:
    """Converts one answer: holds a problem back until its body is complete, and passes other answers on."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Receive the next message of the answer."""
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
        await self._send({**start, "status": to_openai_status(problem)})
        await self._send({"type": "http.response.body", "body": body})


def _encode(problem: Mapping[str, Any]) -> bytes:
    return json.dumps(
        to_openai_error(problem)
    ).encode()  # in ASCII: what was sent may hold a lone surrogate, and is quoted


def _is_problem(start: Message) -> bool:
    return MutableHeaders(scope=start).get("content-type", "").startswith("application/problem+json")


PROBLEM_MEDIA = "application/problem+json"


def add_problems(app: FastAPI) -> None:
    """Register the handlers that answer errors with problems."""
    app.add_exception_handler(RequestValidationError, _answer_malformed)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(HunkError, _answer_fault)
    app.add_exception_handler(Exception, _answer_bug)


def make_problem_response(fault: HunkError) -> Response:
    """Return a response with the problem of an error."""
    body = json.dumps(problem_to_json(fault))  # in ASCII: what was sent may hold a lone surrogate, and is quoted
    return Response(body, fault.http_status, make_problem_headers(fault), media_type=PROBLEM_MEDIA)


def make_problem_headers(fault: HunkError) -> dict[str, str]:
    """Return the headers of the response to an error."""
    headers = {}
    if fault.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(fault.retry_after_s)))
    if isinstance(fault, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def make_bug_fault(error: Exception) -> HunkError:
    """Return the error that a client gets for an unexpected exception; only the log has the exception's text."""
    return HunkError(f"a fault of this service ({type(error).__name__}); its log has the details")


async def _answer_malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    sent = request.headers.get("content-type", "")
    if isinstance(error.body, bytes) and error.body:  # the framework reads nothing but JSON
        what = f"{sent!r} is" if sent else "there is no Content-Type, and nothing else is"
        return make_problem_response(UnsupportedMedia(f"{what} not taken here: send JSON, as application/json"))
    return make_problem_response(convert_validation_error(list(error.errors())))


async def _answer_fault(_: Request, error: Exception) -> Response:
    assert isinstance(error, HunkError)
    return make_problem_response(error)


async def _answer_bug(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception with a problem; the server logs the traceback.

    This answer does not pass the middleware, so the request's id is added here.
    """
    fault = make_bug_fault(error)
    response = make_error_response(fault) if is_openai(request.scope) else make_problem_response(fault)
    response.headers[REQUEST_ID_HEADER] = request.scope.get(REQUEST_ID_KEY, "")
    return response


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    match error.status_code:
        case 404:
            instead = [text for served, text in UNSERVED.items() if path == served or path.startswith(f"{served}/")]
            if instead:
                return make_problem_response(NoSuchRoute(f"there is no {path}: {instead[0]} (/v1/chat/completions)"))
            return make_problem_response(NoSuchRoute(f"there is no {path}; /openapi.json lists what there is"))
        case 405:
            allowed = (error.headers or {}).get("Allow", "")
            response = make_problem_response(MethodNotAllowed(f"{path} does not take {request.method}, but {allowed}"))
            response.headers["Allow"] = allowed
            return response
        case 413:
            return make_problem_response(TooLarge(error.detail))
        case _:
            return make_problem_response(_find_cause(error))


def _find_cause(error: HTTPException) -> HunkError:
    """Return the error for a body that the framework could not parse, from the exception's cause."""
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
