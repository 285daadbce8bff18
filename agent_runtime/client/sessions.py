"""Sessions of a service, and their calls: read files, ask a question, apply an edit.

Types of answers are imported when needed: they load the tokenizer's library, which merging edits does not need.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from agent_runtime.certainty import Certainty
from agent_runtime.client.calls import Call, Value, build_path, make_value
from agent_runtime.client.responses import AsyncStream, Final, Stream
from agent_runtime.client.workspaces import AsyncSend, Send
from agent_runtime.errors import HunkError, SessionMissing
from agent_runtime.serialization import result_from_json, usage_from_json
from agent_runtime.types import (
    ApplyResult,
    Decide,
    Draft,
    EditInput,
    Mode,
    OnConflict,
    ReuseName,
    ScopeName,
    Usage,
    encode_edit,
    sum_usage,
)
from editor.types import FormatName, Policy

if TYPE_CHECKING:
    from agent_runtime.session import ReadFile, SeenFile, SessionAnswer, SessionState


@dataclass(frozen=True, slots=True)
class Turn:
    """Usage of one question or edit; `timings` are milliseconds."""

    kind: Literal["ask", "apply"]
    usage: Usage
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """Usage of a session so far, by turn."""

    turns: tuple[Turn, ...] = ()

    @property
    def total(self) -> Usage:
        return sum_usage(turn.usage for turn in self.turns)

    def add_turn(self, turn: Turn) -> SessionUsage:
        """Return the usage with a further turn."""
        return SessionUsage((*self.turns, turn))


class AskOptions(TypedDict, total=False):
    """Options of a question.

    max_tokens: of the answer, 1024 by default. clock: text that changes with every turn, such as the time; it is placed
    right before the question, so that nothing before it is computed again. prediction: the expected answer; it saves
    time where it is right and changes nothing where it is not. idempotency_key: as in `EditOptions`. The others control
    sampling; temperature 0 is greedy.
    """

    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int
    stop: Sequence[str]
    clock: str
    prediction: str | None
    idempotency_key: str


class EditOptions(TypedDict, total=False):
    """Options of an edit in a session: those of `agent_runtime.types.Options`, and these.

    path: the file; without it, those that the edit names. write: the merged files are written, and the next question
    shows them. expected_sha256: the hash that the sender expects of the file. base_sha256: the hash of the version that
    the edit was made for; if the file has changed since, both changes are merged. prediction: the expected text of the
    whole file. idempotency_key: to repeat a call from another process; by default each call has its own.
    """

    path: str | None
    write: bool
    expected_sha256: str | None
    base_sha256: str | None
    on_conflict: OnConflict
    prediction: str | None
    idempotency_key: str
    format: FormatName | Literal["auto"]
    instruction: str
    mode: Mode
    policy: Policy
    min_certainty: Certainty | None
    temperature: float
    seed: int
    max_tokens: int | None
    max_write_seconds: float
    draft: Draft
    scope: ScopeName
    decide: Decide
    reuse: ReuseName | None
    trace: bool


def build_begin_call(workspace: str | None, reuse: ReuseName | None, preamble: str | None) -> Call[str]:
    """Build the call that starts a session; its value is the id."""
    body = {"workspace": workspace, "reuse": reuse, "preamble": preamble}
    return Call("POST", "/sessions", lambda answer: str(answer["id"]), _drop_none(body))


def build_state_call(session_id: str) -> Call[SessionState]:
    """Build the call for a session's state."""
    return Call("GET", build_path("sessions", session_id), state_from_json)


def build_end_call(session_id: str) -> Call[None]:
    """Build the call that ends a session."""
    return Call("DELETE", build_path("sessions", session_id), lambda _: None)


def build_read_call(
    session_id: str, paths: Iterable[str], texts: Mapping[str, str], forget: Iterable[str], *, with_text: bool
) -> Call[tuple[ReadFile, ...]]:
    """Build the call that puts files into the context, or takes them out."""
    body = {"paths": [*paths], "texts": dict(texts), "forget": [*forget], "with_text": with_text}
    return Call("POST", build_path("sessions", session_id, "read"), read_from_json, body)


def build_ask_call(session_id: str, question: str, options: AskOptions, *, stream: bool) -> Call[SessionAnswer]:
    """Build the call of a question; it has a key, so that a repeated call is not asked twice."""
    body = {"question": question, **options, "stream": stream}
    key = body.pop("idempotency_key", None)
    if "stop" in options:
        body["stop"] = [*options["stop"]]
    return Call(
        "POST",
        build_path("sessions", session_id, "ask"),
        answer_from_json,
        _drop_none(body),
        idempotency_key=str(key or uuid.uuid4()),
        works=True,
    )


def build_apply_call(session_id: str, edit: EditInput, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
    """Build the call of an edit; it has a key, as it counts in the session's usage even where nothing is written."""
    body = {"edit": encode_edit(edit), **options, "stream": stream}
    key = body.pop("idempotency_key", None)
    return Call(
        "POST",
        build_path("sessions", session_id, "apply"),
        result_from_json,
        _drop_none(body),
        idempotency_key=str(key or uuid.uuid4()),
        works=True,
    )


def _drop_none(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


class Follow(Protocol):
    """Builds a call, sends it and returns the events of its answer."""

    def __call__(self, make: Callable[[], Call[Final]], /) -> Stream[Final]: ...


class AsyncFollow(Protocol):
    """`Follow` for an event loop."""

    def __call__(self, make: Callable[[], Awaitable[Call[Final]]], /) -> AsyncStream[Final]: ...


class _SessionBase:
    """The id, once the session has begun, and the usage of its turns."""

    def __init__(self, begin: Call[str]) -> None:
        self._begin_call = begin
        self._id: str | None = None
        self._ended = False
        self._usage = SessionUsage()

    @property
    def usage(self) -> SessionUsage:
        """The usage of each question and edit, and in total."""
        return self._usage

    def _check_open(self) -> None:
        if self._ended:
            raise SessionMissing("this session is closed; start another one")

    def _count_turn(self, kind: Literal["ask", "apply"], call: Call[Value]) -> Call[Value]:
        """Return the call so that parsing its answer adds a turn."""

        def read(answer: Any) -> Value:
            value: Any = call.read(answer)
            self._usage = self._usage.add_turn(Turn(kind, value.usage, value.timings))
            counted: Value = value
            return counted

        return replace(call, read=read)


class Session(_SessionBase):
    """A conversation about files; the first call starts it, and `close` or the end of `with` ends it.

    One call at a time: a second one is refused with SessionBusy. A failed call leaves the conversation as it was.
    """

    def __init__(self, send: Send, follow: Follow, begin: Call[str]) -> None:
        super().__init__(begin)
        self._send, self._follow = send, follow

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.close()
        except HunkError:
            if error is None:
                raise

    def read(
        self,
        paths: Iterable[str] = (),
        *,
        texts: Mapping[str, str] | None = None,
        forget: Iterable[str] = (),
        with_text: bool = False,
    ) -> tuple[ReadFile, ...]:
        """Add files of the workspace, and texts under paths of their own, to the context: all or none.

        Each question shows them as they are then, so that none has to be read again. Returns for each whether it is
        new or has changed, and with `with_text` its text. `forget`: files to remove from the context.
        """
        return self._send(build_read_call(self._ensure_id(), paths, texts or {}, forget, with_text=with_text))

    def ask(self, question: str, **options: Unpack[AskOptions]) -> SessionAnswer:
        """Ask the model, which sees the files as they are now and the conversation; see `AskOptions`.

        Raises TooLarge where this does not fit the model's context, SessionMissing where the session has expired.
        """
        return self._send(self._build_ask_call(question, options, stream=False))

    def stream(self, question: str, **options: Unpack[AskOptions]) -> Stream[SessionAnswer]:
        """Ask as `ask`: yields tokens as they are written, and last the SessionAnswer. Closing cancels the work."""
        return self._follow(lambda: self._build_ask_call(question, options, stream=True))

    def apply(self, edit: EditInput, **options: Unpack[EditOptions]) -> ApplyResult:
        """Merge an edit into one file, or without `path` into those that it names; see `EditOptions`."""
        return self._send(self._build_apply_call(edit, options, stream=False))

    def stream_apply(self, edit: EditInput, **options: Unpack[EditOptions]) -> Stream[ApplyResult]:
        """Merge as `apply`: yields phases and tokens, and at the end the ApplyResult."""
        return self._follow(lambda: self._build_apply_call(edit, options, stream=True))

    def state(self) -> SessionState:
        """Return the session's state: files, messages, usage."""
        return self._send(build_state_call(self._ensure_id()))

    def close(self) -> None:
        """End the session, if it has begun and still exists."""
        session_id, self._id, self._ended = self._id, None, True
        if session_id is not None:
            try:
                self._send(build_end_call(session_id))
            except SessionMissing:
                return

    def _ensure_id(self) -> str:
        self._check_open()
        if self._id is None:
            self._id = self._send(self._begin_call)
        return self._id

    def _build_ask_call(self, question: str, options: AskOptions, *, stream: bool) -> Call[SessionAnswer]:
        return self._count_turn("ask", build_ask_call(self._ensure_id(), question, options, stream=stream))

    def _build_apply_call(self, edit: EditInput, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
        return self._count_turn("apply", build_apply_call(self._ensure_id(), edit, options, stream=stream))


class AsyncSession(_SessionBase):
    """`Session` for an event loop."""

    def __init__(self, send: AsyncSend, follow: AsyncFollow, begin: Call[str]) -> None:
        super().__init__(begin)
        self._send, self._follow = send, follow

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self.aclose()
        except HunkError:
            if error is None:
                raise

    async def read(
        self,
        paths: Iterable[str] = (),
        *,
        texts: Mapping[str, str] | None = None,
        forget: Iterable[str] = (),
        with_text: bool = False,
    ) -> tuple[ReadFile, ...]:
        """See `Session.read`."""
        return await self._send(
            build_read_call(await self._ensure_id(), paths, texts or {}, forget, with_text=with_text)
        )

    async def ask(self, question: str, **options: Unpack[AskOptions]) -> SessionAnswer:
        """See `Session.ask`."""
        return await self._send(await self._build_ask_call(question, options, stream=False))

    def stream(self, question: str, **options: Unpack[AskOptions]) -> AsyncStream[SessionAnswer]:
        """See `Session.stream`."""
        return self._follow(lambda: self._build_ask_call(question, options, stream=True))

    async def apply(self, edit: EditInput, **options: Unpack[EditOptions]) -> ApplyResult:
        """See `Session.apply`."""
        return await self._send(await self._build_apply_call(edit, options, stream=False))

    def stream_apply(self, edit: EditInput, **options: Unpack[EditOptions]) -> AsyncStream[ApplyResult]:
        """See `Session.stream_apply`."""
        return self._follow(lambda: self._build_apply_call(edit, options, stream=True))

    async def state(self) -> SessionState:
        """See `Session.state`."""
        return await self._send(build_state_call(await self._ensure_id()))

    async def aclose(self) -> None:
        """See `Session.close`."""
        session_id, self._id, self._ended = self._id, None, True
        if session_id is not None:
            try:
                await self._send(build_end_call(session_id))
            except SessionMissing:
                return

    async def _ensure_id(self) -> str:
        self._check_open()
        if self._id is None:
            self._id = await self._send(self._begin_call)
        return self._id

    async def _build_ask_call(self, question: str, options: AskOptions, *, stream: bool) -> Call[SessionAnswer]:
        return self._count_turn("ask", build_ask_call(await self._ensure_id(), question, options, stream=stream))

    async def _build_apply_call(self, edit: EditInput, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
        return self._count_turn("apply", build_apply_call(await self._ensure_id(), edit, options, stream=stream))


def read_from_json(answer: Mapping[str, Any]) -> tuple[ReadFile, ...]:
    """Parse the answer of `POST /sessions/{id}/read`."""
    from agent_runtime.session import ReadFile

    return tuple(make_value(ReadFile, file) for file in answer["files"])


def answer_from_json(answer: Mapping[str, Any]) -> SessionAnswer:
    """Parse the answer of `POST /sessions/{id}/ask`."""
    from agent_runtime.session import SessionAnswer

    usage, noted = usage_from_json(answer["usage"]), tuple(answer["noted"])
    return make_value(
        SessionAnswer,
        answer,
        usage=usage,
        timings=dict(answer["timings"]),
        files=_parse_seen_files(answer),
        noted=noted,
    )


def state_from_json(answer: Mapping[str, Any]) -> SessionState:
    """Parse the answer of `GET /sessions/{id}`."""
    from agent_runtime.session import HistoryMessage, SessionState

    return make_value(
        SessionState,
        answer,
        files=_parse_seen_files(answer),
        messages=tuple(make_value(HistoryMessage, message) for message in answer["messages"]),
        usage=usage_from_json(answer["usage"]),
        turns=tuple(usage_from_json(turn) for turn in answer["turns"]),
    )


def _parse_seen_files(answer: Mapping[str, Any]) -> tuple[SeenFile, ...]:
    from agent_runtime.session import SeenFile

    return tuple(make_value(SeenFile, file) for file in answer["files"])
