"""A session of a service, as agent loops use it: read files, ask, apply an edit, and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

from agent_runtime.client import session_calls as calls
from agent_runtime.client.call import Call, Value
from agent_runtime.client.session_calls import AskOptions, EditOptions, SessionUsage, Turn
from agent_runtime.client.streams import AsyncStream, Final, Stream
from agent_runtime.client.workspaces import AsyncSend, Send
from agent_runtime.errors import HunkError, SessionMissing
from agent_runtime.types import ApplyResult

if TYPE_CHECKING:
    from agent_runtime.sessions import Answer, ReadFile, SessionState


class Follow(Protocol):
    """Makes a call, sends it and gives what its answer is made of as it comes."""

    def __call__(self, make: Callable[[], Call[Final]], /) -> Stream[Final]: ...


class AsyncFollow(Protocol):
    """As `Follow`."""

    def __call__(self, make: Callable[[], Awaitable[Call[Final]]], /) -> AsyncStream[Final]: ...


class _SessionSoFar:
    """What both kinds of sessions remember: the id, once it has begun, and what each turn took."""

    def __init__(self, begin: Call[str]) -> None:
        self._begin = begin
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

    def _counted(self, kind: Literal["ask", "apply"], call: Call[Value]) -> Call[Value]:
        """The call; reading its answer adds a turn."""

        def read(answer: Any) -> Value:
            value: Any = call.read(answer)
            self._usage = self._usage.with_turn(Turn(kind, value.usage, value.timings))
            counted: Value = value
            return counted

        return replace(call, read=read)


class Session(_SessionSoFar):
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
        return self._send(calls.read_call(self._begun(), paths, texts or {}, forget, with_text=with_text))

    def ask(self, question: str, **options: Unpack[AskOptions]) -> Answer:
        """Ask the model, which is shown the files as they are now and all that was said; see `AskOptions`.

        Raises TooLarge where it does not fit the model's context, SessionMissing where the session was idle too long.
        """
        return self._send(self._ask(question, options, stream=False))

    def stream(self, question: str, **options: Unpack[AskOptions]) -> Stream[Answer]:
        """As `ask`: tokens as the model writes them, and the Answer as the last. Closing ends the work."""
        return self._follow(lambda: self._ask(question, options, stream=True))

    def apply(self, edit: str, **options: Unpack[EditOptions]) -> ApplyResult:
        """Have an edit merged into one file, or without `path` into those that it names; see `EditOptions`."""
        return self._send(self._apply(edit, options, stream=False))

    def stream_apply(self, edit: str, **options: Unpack[EditOptions]) -> Stream[ApplyResult]:
        """As `apply`: phases and tokens while it is merged, and the ApplyResult as the last."""
        return self._follow(lambda: self._apply(edit, options, stream=True))

    def state(self) -> SessionState:
        """What the service knows of it: files, messages, usage."""
        return self._send(calls.state_call(self._begun()))

    def close(self) -> None:
        """End the session, if it has begun and is still there."""
        session_id, self._id, self._ended = self._id, None, True
        if session_id is not None:
            try:
                self._send(calls.end_call(session_id))
            except SessionMissing:
                return

    def _begun(self) -> str:
        self._check_open()
        if self._id is None:
            self._id = self._send(self._begin)
        return self._id

    def _ask(self, question: str, options: AskOptions, *, stream: bool) -> Call[Answer]:
        return self._counted("ask", calls.ask_call(self._begun(), question, options, stream=stream))

    def _apply(self, edit: str, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
        return self._counted("apply", calls.apply_call(self._begun(), edit, options, stream=stream))


class AsyncSession(_SessionSoFar):
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
        return await self._send(calls.read_call(await self._begun(), paths, texts or {}, forget, with_text=with_text))

    async def ask(self, question: str, **options: Unpack[AskOptions]) -> Answer:
        """As `Session.ask`."""
        return await self._send(await self._ask(question, options, stream=False))

    def stream(self, question: str, **options: Unpack[AskOptions]) -> AsyncStream[Answer]:
        """As `Session.stream`."""
        return self._follow(lambda: self._ask(question, options, stream=True))

    async def apply(self, edit: str, **options: Unpack[EditOptions]) -> ApplyResult:
        """As `Session.apply`."""
        return await self._send(await self._apply(edit, options, stream=False))

    def stream_apply(self, edit: str, **options: Unpack[EditOptions]) -> AsyncStream[ApplyResult]:
        """As `Session.stream_apply`."""
        return self._follow(lambda: self._apply(edit, options, stream=True))

    async def state(self) -> SessionState:
        """As `Session.state`."""
        return await self._send(calls.state_call(await self._begun()))

    async def aclose(self) -> None:
        """As `Session.close`."""
        session_id, self._id, self._ended = self._id, None, True
        if session_id is not None:
            try:
                await self._send(calls.end_call(session_id))
            except SessionMissing:
                return

    async def _begun(self) -> str:
        self._check_open()
        if self._id is None:
            self._id = await self._send(self._begin)
        return self._id

    async def _ask(self, question: str, options: AskOptions, *, stream: bool) -> Call[Answer]:
        return self._counted("ask", calls.ask_call(await self._begun(), question, options, stream=stream))

    async def _apply(self, edit: str, options: EditOptions, *, stream: bool) -> Call[ApplyResult]:
        return self._counted("apply", calls.apply_call(await self._begun(), edit, options, stream=stream))
