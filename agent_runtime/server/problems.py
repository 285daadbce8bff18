"""Faults below /v1 in the shape that clients of OpenAI read, whoever in the service found them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import HunkError, TooLarge, UnknownModel, Unsupported
from agent_runtime.shapes import PROBLEM_TYPE, problem_of

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
"""What OpenAI calls these kinds of problems; the others keep our name, with underscores."""

STATUSES = {TooLarge.kind: 400, Unsupported.kind: 400, UnknownModel.kind: 404}
"""Where OpenAI answers with another status than we do."""

PARAMS = {UnknownModel.kind: "model"}
"""What a problem is about that does not say so itself."""

MAX_TOLD = 5
"""Reasons that the message tells; the others stand in `hunk`."""

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

_MEMBERS = ("type", "title", "status", "detail", "field")
"""Of a problem, which the error says in other words."""


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
    """What to send instead of a refused edit: many clients show the message and nothing else of an error."""
    told = [reason[part] for reason in reasons[:MAX_TOLD] for part in ("nearest", "suggestion")]
    return [text for text in told if text]


def status_of(problem: Mapping[str, Any]) -> int:
    """With which status a problem is answered below /v1."""
    status: int = problem["status"]
    return STATUSES.get(str(problem["type"]).removeprefix(PROBLEM_TYPE), status)


def is_openai(scope: Scope) -> bool:
    """Whether a request is one of those that are answered in OpenAI's shape."""
    return scope["type"] == "http" and str(scope["path"]).startswith(PREFIX)


def error_response(fault: HunkError) -> Response:
    """A fault as OpenAI's error."""
    problem = problem_of(fault)
    return Response(_encoded(problem), status_of(problem), media_type="application/json")


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
        body = _encoded(problem)
        headers = MutableHeaders(scope=start)
        headers["content-type"] = "application/json"
        headers["content-length"] = str(len(body))
        await self._send({**start, "status": status_of(problem)})
        await self._send({"type": "http.response.body", "body": body})


def _encoded(problem: Mapping[str, Any]) -> bytes:
    return json.dumps(error_of(problem)).encode()  # in ASCII: what was sent may hold a lone surrogate, and is quoted


def _is_problem(start: Message) -> bool:
    return MutableHeaders(scope=start).get("content-type", "").startswith("application/problem+json")
