"""Responses of the service: values, errors, and streams of events or lines."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import httpx
from httpx_sse import ServerSentEvent

from agent_runtime.client.calls import Call, Value
from agent_runtime.errors import FileMissing, Forbidden, HunkError, NoConnection, TooManyRequests, Unauthorized
from agent_runtime.request_context import Piece
from agent_runtime.serialization import problem_from_json

Made = TypeVar("Made")

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
"""Content types of streams."""

_BY_STATUS: dict[int, type[HunkError]] = {401: Unauthorized, 403: Forbidden, 404: FileMissing, 429: TooManyRequests}
"""The errors of statuses in OpenAI's format, which the routes below /v1 use."""


def parse_response(call: Call[Value], response: httpx.Response, base_url: str) -> Value:
    """Return the value of an answer whose body has been read; raises its error."""
    if not response.is_success:
        raise parse_fault(response, base_url)
    answer = _parse_json(response, base_url) if response.content else None
    return parse_answer(call.read, answer, f"{call.method} {call.path}", base_url)


def is_stream(response: httpx.Response, content_type: str) -> bool:
    """Return whether a successful answer is a stream of a type."""
    return response.is_success and response.headers.get("Content-Type", "").partition(";")[0].strip() == content_type


def check_stream(response: httpx.Response, content_type: str, base_url: str) -> httpx.Response:
    """Return a response that is a stream; raises the error in it otherwise, for which its body has been read."""
    if is_stream(response, content_type):
        return response
    if not response.is_success:
        raise parse_fault(response, base_url)
    raise HunkError(f"{base_url} did not answer with {content_type}; is it Hunk, and of this version?")


def parse_answer(read: Callable[[Any], Made], answer: Any, what: str, base_url: str) -> Made:
    """Parse an answer by `read`; raises HunkError where it does not have the API's format."""
    try:
        return read(answer)
    except (KeyError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise HunkError(
            f"{base_url} answered {what} in a format that this client does not know "
            f"({type(error).__name__}: {error}); is it Hunk, and of this version?"
        ) from error


def parse_fault(response: httpx.Response, base_url: str) -> HunkError:
    """Return the error of an answer with an error status; its body has been read."""
    try:
        problem = _parse_json(response, base_url)
    except HunkError as fault:
        return fault
    return _parse_problem(problem if isinstance(problem, dict) else {}, response.status_code)


def _parse_problem(problem: Mapping[str, Any], status: int) -> HunkError:
    error = problem.get("error")
    if not isinstance(error, dict):
        return problem_from_json(problem)
    return _BY_STATUS.get(status, HunkError)(str(error.get("message", "the service answered with an unknown error")))


def _parse_json(response: httpx.Response, base_url: str) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise HunkError(f"{base_url} answered {response.status_code} without JSON; is it Hunk?") from error


@dataclass(frozen=True, slots=True)
class Phase:
    """The start of a phase, named as in `timings` without `_ms`: parse, merge, prefill, decode, verify, ..."""

    name: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that the model wrote for one region (from 0) of the file; the answer to a question is one region."""

    pieces: tuple[Piece, ...]
    region: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def _parse_phase(data: dict[str, Any]) -> Phase:
    return Phase(str(data["phase"]))


def _parse_tokens(data: dict[str, Any]) -> Tokens:
    pieces = tuple(Piece(str(piece["text"]), piece["origin"]) for piece in data["pieces"])
    return Tokens(pieces, int(data.get("region", 0)))


Item = TypeVar("Item")
Final = TypeVar("Final")


class Items(Generic[Item], Iterator[Item]):
    """Yields items as they arrive. Closing it, or leaving its `with`, cancels the work at the service."""

    def __init__(self, items: Generator[Item, None, None]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        return next(self._items)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and cancel the work at the service."""
        self._items.close()


class Stream(Items[Phase | Tokens | Final], Generic[Final]):
    """Yields phases and tokens as they arrive, and at the end the answer."""

    def result(self) -> Final:
        """Skip the remaining events and return the answer."""
        answers = [event for event in self if not isinstance(event, Phase | Tokens)]
        if answers:
            return answers[0]
        raise HunkError("the stream was read to its end or closed before; keep its last event, which is the answer")


class AsyncItems(Generic[Item], AsyncIterator[Item]):
    """`Items` for an event loop; use `async with` or `aclose` where it is not read to its end."""

    def __init__(self, items: AsyncGenerator[Item, None]) -> None:
        self._items = items

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        return await anext(self._items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop, and cancel the work at the service."""
        await self._items.aclose()


class AsyncStream(AsyncItems[Phase | Tokens | Final], Generic[Final]):
    """`Stream` for an event loop."""

    async def result(self) -> Final:
        """Skip the remaining events and return the answer."""
        answers = [event async for event in self if not isinstance(event, Phase | Tokens)]
        if answers:
            return answers[0]
        raise HunkError("the stream was read to its end or closed before; keep its last event, which is the answer")


@dataclass(slots=True)
class EventReader(Generic[Final]):
    """Parses server-sent events; `read` parses the answer in the last one."""

    read: Callable[[Any], Final]
    base_url: str
    has_ended: bool = False

    def parse(self, sent: ServerSentEvent) -> Phase | Tokens | Final | None:
        """Return the typed event, None for one of a later version; raises the error of a problem."""
        parsers: dict[str, Callable[[Any], Phase | Tokens | Final | HunkError]] = {
            "phase": _parse_phase,
            "tokens": _parse_tokens,
            "result": self.read,
            "problem": problem_from_json,
        }
        if sent.event not in parsers:
            return None
        parse = parsers[sent.event]
        event = parse_answer(lambda data: parse(json.loads(data)), sent.data, f"an event {sent.event!r}", self.base_url)
        if isinstance(event, HunkError):
            raise event
        self.has_ended = self.has_ended or sent.event == "result"
        return event

    def check_ended(self) -> None:
        """Raise NoConnection where the stream has ended without an answer."""
        if not self.has_ended:
            raise make_cut_off_error(self.base_url)


@dataclass(slots=True)
class LineReader(Generic[Item]):
    r"""Parses lines of JSON, split at "\n" only; httpx also splits at U+2028 and the like."""

    read: Callable[[Any], Item]
    num_missing: int
    base_url: str
    _rest: list[bytes] = field(default_factory=list)

    def parse(self, data: bytes) -> list[Item]:
        """Return the items whose lines these bytes complete."""
        first, *more = data.split(b"\n")
        self._rest.append(first)
        if not more:
            return []
        lines = [line for line in (b"".join(self._rest), *more[:-1]) if line.strip()]
        self._rest = [more[-1]]
        self.num_missing -= len(lines)
        return [parse_answer(self._parse_line, line, "a line", self.base_url) for line in lines]

    def check_ended(self) -> None:
        """Raise NoConnection where the answer has ended too early."""
        if self.num_missing > 0 or b"".join(self._rest).strip():
            raise make_cut_off_error(self.base_url)

    def _parse_line(self, line: bytes) -> Item:
        return self.read(json.loads(line))


def make_cut_off_error(base_url: str) -> NoConnection:
    """Return the error of a connection that ended before the answer did."""
    return NoConnection(f"{base_url} ended its answer too early; was the service stopped?")
