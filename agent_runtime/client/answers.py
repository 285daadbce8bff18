"""Reads answers: the value that a call asks for, or the error that the service's problem stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx

from agent_runtime.client.call import Call, Value
from agent_runtime.errors import FileMissing, Forbidden, HunkError, TooManyRequests, Unauthorized
from agent_runtime.shapes import fault_of

Made = TypeVar("Made")

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
"""The types of answers that come piece by piece."""

_BY_STATUS: dict[int, type[HunkError]] = {401: Unauthorized, 403: Forbidden, 404: FileMissing, 429: TooManyRequests}
"""What errors in OpenAI's shape, which the routes below /v1 have, stand for."""


def value_in(call: Call[Value], response: httpx.Response, base_url: str) -> Value:
    """The value of an answer whose body has been read; raises the fault in it."""
    if not response.is_success:
        raise fault_in(response, base_url)
    answer = _json(response, base_url) if response.content else None
    return made(call.read, answer, f"{call.method} {call.path}", base_url)


def is_stream(response: httpx.Response, content_type: str) -> bool:
    """Whether an answer is a good one that comes piece by piece."""
    return response.is_success and response.headers.get("Content-Type", "").partition(";")[0].strip() == content_type


def checked(response: httpx.Response, content_type: str, base_url: str) -> httpx.Response:
    """An answer that comes piece by piece; raises the fault in it where it is another one, which has been read."""
    if is_stream(response, content_type):
        return response
    if not response.is_success:
        raise fault_in(response, base_url)
    raise HunkError(f"{base_url} did not answer with {content_type}; is it Hunk, and of this version?")


def made(read: Callable[[Any], Made], answer: Any, what: str, base_url: str) -> Made:
    """What `read` makes of an answer; raises HunkError where the answer has another shape than the API's."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise HunkError(
            f"{base_url} answered {what} in a shape that this client does not know "
            f"({type(error).__name__}: {error}); is it Hunk, and of this version?"
        ) from error


def fault_in(response: httpx.Response, base_url: str) -> HunkError:
    """The error that an answer with an error's status stands for; its body has been read."""
    try:
        problem = _json(response, base_url)
    except HunkError as fault:
        return fault
    return _fault(problem if isinstance(problem, dict) else {}, response.status_code)


def _fault(problem: Mapping[str, Any], status: int) -> HunkError:
    error = problem.get("error")
    if not isinstance(error, dict):
        return fault_of(problem)
    return _BY_STATUS.get(status, HunkError)(str(error.get("message", "the service answered with an unknown error")))


def _json(response: httpx.Response, base_url: str) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise HunkError(f"{base_url} answered {response.status_code} without JSON; is it Hunk?") from error
