"""Sessions of a service, and their calls: read files, ask, apply an edit."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack

from agent_runtime.client import values
from agent_runtime.client.call import Call, Value, build_path
from agent_runtime.client.responses import AsyncStream, Final, Stream
from agent_runtime.client.workspaces import AsyncSend, Send
from agent_runtime.errors import HunkError, SessionMissing
from agent_runtime.serialization import result_from_json
from agent_runtime.types import ApplyResult, Certainty, Decide, Draft, Mode, ReuseName, ScopeName, Usage, total_usage
from editor.types import FormatName, Policy

if TYPE_CHECKING:
    from agent_runtime.session import ReadFile, SessionAnswer, SessionState


@dataclass(frozen=True, slots=True)
class Turn:
    """What one question or edit took; `timings` are milliseconds."""

    kind: Literal["ask", "apply"]
    usage: Usage
    timings: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session has taken so far, turn by turn."""

    turns: tuple[Turn, ...] = ()

    @property
    def total(self) -> Usage:
        """All turns together."""
        return total_usage(turn.usage for turn in self.turns)

    def add_turn(self, turn: Turn) -> SessionUsage:
        """One more."""
        return SessionUsage((*self.turns, turn))


class AskOptions(TypedDict, total=False):
    """How a question is answered.

    max_tokens: of the answer, 1024 by default. clock: what changes with every turn, such as the time: it stands right
    before the question, so that nothing before it is computed anew. prediction: what the answer is expected to be; it
    saves time where it is right and changes nothing where it is not. idempotency_key: as in `EditOptions`. The rest is
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
    """How an edit is applied in a session: what `agent_runtime.types.Options` has, and this.

    path: the file; without, those that the edit names. write: the merged files take their places, and the next question
    shows them. expected_sha256: of the file as the sender believes it to be. prediction: what the whole file is likely
    to be. idempotency_key: of a call that is sent again by another process; each call has one of its own otherwise.
    """

    path: str | None
    write: bool
    expected_sha256: str | None
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
    draft: Draft
    scope: ScopeName
    decide: Decide
    reuse: ReuseName | None
    trace: bool


def begin_call(workspace: str | None, reuse: ReuseName | None, preamble: str | None) -> Call[str]:
    """A new session; its id."""
    body = {"workspace": workspace, "reuse": reuse, "preamble": preamble}
    return Call("POST", "/sessions", lambda answer: str(answer["id"]), _drop_none(body))


def state_call(session_id: str) -> Call[SessionState]:
    """What it holds."""
    return Call("GET", build_path("sessions", session_id), values.state_from_json)


def end_call(session_id: str) -> Call[None]:
    """The session is no more."""
    return Call("DELETE", build_path("sessions", session_id), lambda _: None)


def read_call(
    session_id: str, paths: Iterable[str], texts: Mapping[str, str], forget: Iterable[str], *, with_text: bool
) -> Call[tuple[ReadFile, ...]]:
    """Files into the context, and out of it."""
    body = {"paths": [*paths], "texts": dict(texts), "forget": [*forget], "with_text": with_text}
    return Call("POST", build_path("sessions", session_id, "read"), values.read_from_json, body)


def ask_call(session_id: str, question: str, options: AskOptions, *, stream: bool) -> Call[SessionAnswer]:
    """A question; it has a key, so that it can be sent again without being asked twice."""
    body = {"question": question, **options, "stream": stream}
    key = body.pop("idempotency_key", None)
    if "stop" in options:
        body["stop"] = [*options["stop"]]
    return Call(
        "POST",
        build_path("sessions", session_id, "ask"),
        values.answer_from_json,
        _drop_none(body),
        idempotency_key=str(key or uuid.uuid4()),
        works=True,
    )


def apply_call(session_id: str, edit: str, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
    """An edit; it has a key, as it counts in what the session has used even where nothing is written."""
    body = {"edit": edit, **options, "stream": stream}
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
    """Makes a call, sends it and gives what its answer is made of as it comes."""

    def __call__(self, make: Callable[[], Call[Final]], /) -> Stream[Final]: ...


class AsyncFollow(Protocol):
    """As `Follow`."""

    def __call__(self, make: Callable[[], Awaitable[Call[Final]]], /) -> AsyncStream[Final]: ...


class _SessionBase:
    """What both kinds of sessions remember: the id, once it has begun, and what each turn took."""

    def __init__(self, begin: Call[str]) -> None:
        self._begin_call = begin
        self._id: str | None = None
        self._ended = False
        self._usage = SessionUsage()

    @property
    def usage(self) -> SessionUsage:
        """What each question and edit took, and all of them."""
        return self._usage

    def _check_open(self) -> None:
        if self._ended:
            raise SessionMissing("this session was closed; begin another one")

    def _count_turn(self, kind: Literal["ask", "apply"], call: Call[Value]) -> Call[Value]:
        """The call; reading its answer adds a turn."""

        def read(answer: Any) -> Value:
            value: Any = call.read(answer)
            self._usage = self._usage.add_turn(Turn(kind, value.usage, value.timings))
            counted: Value = value
            return counted

        return replace(call, read=read)


class Session(_SessionBase):
    """One conversation about files; it begins with the first call, and `close` or the end of `with` ends it.

    One call works at a time: another one is refused with SessionBusy. What fails leaves the conversation as it was.
    """

    def __init__(self, send: Send, follow: Follow, begin: Call[str]) -> None:
        super().__init__(begin)
        self._send, self._follow = send, follow

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Put files of the workspace, and texts under paths of their own, into what the model is shown: all or none.

        They are shown as they are whenever a question is asked, so that none has to be read again. Says of each
        whether it is new or has changed, and with `with_text` what it holds. `forget`: files to be taken out.
        """
        return self._send(read_call(self._ensure_id(), paths, texts or {}, forget, with_text=with_text))

    def ask(self, question: str, **options: Unpack[AskOptions]) -> SessionAnswer:
        """Ask the model, which is shown the files as they are now and all that was said; see `AskOptions`.

        Raises TooLarge where it does not fit the model's context, SessionMissing where the session was idle too long.
        """
        return self._send(self._build_ask_call(question, options, stream=False))

    def stream(self, question: str, **options: Unpack[AskOptions]) -> Stream[SessionAnswer]:
        """As `ask`: tokens as the model writes them, and the Answer as the last. Closing ends the work."""
        return self._follow(lambda: self._build_ask_call(question, options, stream=True))

    def apply(self, edit: str, **options: Unpack[EditOptions]) -> ApplyResult:
        """Have an edit merged into one file, or without `path` into those that it names; see `EditOptions`."""
        return self._send(self._build_apply_call(edit, options, stream=False))

    def stream_apply(self, edit: str, **options: Unpack[EditOptions]) -> Stream[ApplyResult]:
        """As `apply`: phases and tokens while it is merged, and the ApplyResult as the last."""
        return self._follow(lambda: self._build_apply_call(edit, options, stream=True))

    def state(self) -> SessionState:
        """What the service knows of it: files, messages, usage."""
        return self._send(state_call(self._ensure_id()))

    def close(self) -> None:
        """End the session, if it has begun and is still there."""
        session_id, self._id, self._ended = self._id, None, True
        if session_id is not None:
            try:
                self._send(end_call(session_id))
            except SessionMissing:
                return

    def _ensure_id(self) -> str:
        self._check_open()
        if self._id is None:
            self._id = self._send(self._begin_call)
        return self._id

    def _build_ask_call(self, question: str, options: AskOptions, *, stream: bool) -> Call[SessionAnswer]:
        return self._count_turn("ask", ask_call(self._ensure_id(), question, options, stream=stream))

    def _build_apply_call(self, edit: str, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
        return self._count_turn("apply", apply_call(self._ensure_id(), edit, options, stream=stream))


class AsyncSession(_SessionBase):
    """As `Session`."""

    def __init__(self, send: AsyncSend, follow: AsyncFollow, begin: Call[str]) -> None:
        super().__init__(begin)
        self._send, self._follow = send, follow

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """As `Session.read`."""
        return await self._send(read_call(await self._ensure_id(), paths, texts or {}, forget, with_text=with_text))

    async def ask(self, question: str, **options: Unpack[AskOptions]) -> SessionAnswer:
        """As `Session.ask`."""
        return await self._send(await self._build_ask_call(question, options, stream=False))

    def stream(self, question: str, **options: Unpack[AskOptions]) -> AsyncStream[SessionAnswer]:
        """As `Session.stream`."""
        return self._follow(lambda: self._build_ask_call(question, options, stream=True))

    async def apply(self, edit: str, **options: Unpack[EditOptions]) -> ApplyResult:
        """As `Session.apply`."""
        return await self._send(await self._build_apply_call(edit, options, stream=False))

    def stream_apply(self, edit: str, **options: Unpack[EditOptions]) -> AsyncStream[ApplyResult]:
        """As `Session.stream_apply`."""
        return self._follow(lambda: self._build_apply_call(edit, options, stream=True))

    async def state(self) -> SessionState:
        """As `Session.state`."""
        return await self._send(state_call(await self._ensure_id()))

    async def aclose(self) -> None:
        """As `Session.close`."""
        session_id, self._id, self._ended = self._id, None, True
        if session_id is not None:
            try:
                await self._send(end_call(session_id))
            except SessionMissing:
                return

    async def _ensure_id(self) -> str:
        self._check_open()
        if self._id is None:
            self._id = await self._send(self._begin_call)
        return self._id

    async def _build_ask_call(self, question: str, options: AskOptions, *, stream: bool) -> Call[SessionAnswer]:
        return self._count_turn("ask", ask_call(await self._ensure_id(), question, options, stream=stream))

    async def _build_apply_call(self, edit: str, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
        return self._count_turn("apply", apply_call(await self._ensure_id(), edit, options, stream=stream))
