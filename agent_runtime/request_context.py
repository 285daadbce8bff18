"""What travels with a request: its sender and scopes, priority and cancellation, and the listener for its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Lock
from time import perf_counter
from typing import Literal, TypeVar, get_args

from agent_runtime.errors import Cancelled, Forbidden, HunkError
from agent_runtime.types import AnswerTrace, ApplyResult
from editor.execution import stop_when

PRINCIPAL_KEY = "hunk.principal"
"""Key of the principal in the ASGI scope; `BearerTokenMiddleware` sets it."""

REQUEST_ID_HEADER = "X-Request-Id"
REQUEST_ID_KEY = "hunk.request_id"
"""Key of the request's id in the ASGI scope; `RequestIdMiddleware` sets it."""

CONTEXT_KEY = "hunk.context"
"""Key of the RequestContext in the ASGI scope; `AdmissionMiddleware` sets it."""

AccessScope = Literal["apply", "read", "admin"]
"""`apply`: merge edits, ask the model, and write files of a workspace. `read`: see files, states and metrics. `admin`:
register workspaces; includes the other two."""

ALL_SCOPES: frozenset[AccessScope] = frozenset(get_args(AccessScope))


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request. `salt` separates one tenant's cache from all others (`Options.salt`)."""

    tenant: str
    scopes: frozenset[AccessScope]
    salt: str = ""

    def has_scope(self, scope: AccessScope) -> bool:
        """Return whether it has a scope, or `admin`, which includes all."""
        return scope in self.scopes or "admin" in self.scopes

    def check(self, scope: AccessScope) -> None:
        """Raise Forbidden if it does not have a scope."""
        if not self.has_scope(scope):
            raise Forbidden(f"the token of {self.tenant!r} lacks the scope {scope!r}; ask for one that has it")


LOCAL = Principal("local", ALL_SCOPES)
"""The principal of all requests if the service has no tokens; it then listens on loopback only."""


class CancelToken:
    """Cancels the work for one request. Thread-safe."""

    def __init__(self, find_fault: Callable[[], HunkError | None] = lambda: None) -> None:
        """`find_fault` may return another reason to end the work, such as the end of the service; it is polled."""
        self._find_fault = find_fault
        self._lock = Lock()
        self._is_cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_cancelled(self) -> bool:
        return self.fault is not None

    @property
    def fault(self) -> HunkError | None:
        """The error with which the work has to end, None while it may continue."""
        return self._find_fault() or (Cancelled("whoever asked has left") if self._is_cancelled else None)

    def cancel(self) -> None:
        """Cancel the work, and call the callbacks; a second call does nothing."""
        with self._lock:
            self._is_cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def add_callback(self, callback: Callable[[], None]) -> None:
        """Call this on `cancel`, or now if the work was cancelled already."""
        with self._lock:
            is_cancelled = self._is_cancelled
            if not is_cancelled:
                self._callbacks.append(callback)
        if is_cancelled:
            callback()

    def raise_if_cancelled(self) -> None:
        """Raise the error with which the work has to end, if there is one."""
        if (fault := self.fault) is not None:
            raise fault

    def make_child(self) -> CancelToken:
        """Return a token that is cancelled with this one, and can be cancelled alone."""
        child = CancelToken(lambda: self.fault)
        self.add_callback(child.cancel)
        return child


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a request carries from the middleware to the engine.

    flow: the holder of the request's share of the model and of the processor: a tenant, or a network if the service
    knows no tokens. priority: the engine admits smaller numbers first (`quotas.FairQueue`). release_slot: releases the
    CPU slot that the work holds; a request that waits for the model must not hold one. affinity: names the session, so
    that its requests reach the replica that holds its KV; "" for other requests.
    """

    principal: Principal = LOCAL
    flow: str = ""
    priority: int = 0
    request_id: str = ""
    cancel: CancelToken = field(default_factory=CancelToken)
    release_slot: Callable[[], None] = lambda: None
    affinity: str = ""

    @property
    def tenant(self) -> str:
        """The tenant that sent the request."""
        return self.principal.tenant


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one token, or of several that are only text together; the model copied or generated it."""

    text: str
    origin: Literal["copied", "generated"]


class ProgressListener:
    """Receives the progress of one apply or answer, from any thread. Every method does nothing by default."""

    wants_text = False
    """Whether `on_pieces` and `on_answer` are called: decoding tokens takes a little time."""

    def on_start(self) -> None:
        """The engine has accepted the first requests of a question."""

    def on_phase(self, phase: str, path: str = "") -> None:
        """A phase begins. Its name is that in `timings` without `_ms`: parse, merge, prefill, decode, verify, ...

        `path` is given if several files are worked on concurrently.
        """

    def on_tokens(self, num_tokens: int) -> None:
        """A forward pass is finished; `num_tokens` are written so far."""

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """A pass wrote these tokens of the answer for one region (from 0) of the file; `path` as in `on_phase`.

        Together the pieces are the answer, without its closing tag. After the phase `prompt` the answer starts again.
        """

    def on_answer(self, trace: AnswerTrace) -> None:
        """The model has answered one question."""


NO_PROGRESS = ProgressListener()
"""Ignores all progress."""


class ProgressFanOut(ProgressListener):
    """Passes progress on to several listeners."""

    def __init__(self, *listeners: ProgressListener) -> None:
        self._listeners = listeners
        self.wants_text = any(listener.wants_text for listener in listeners)

    def on_start(self) -> None:
        for listener in self._listeners:
            listener.on_start()

    def on_phase(self, phase: str, path: str = "") -> None:
        for listener in self._listeners:
            listener.on_phase(phase, path)

    def on_tokens(self, num_tokens: int) -> None:
        for listener in self._listeners:
            listener.on_tokens(num_tokens)

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        for listener in self._listeners:
            if listener.wants_text:
                listener.on_pieces(region, pieces, path)

    def on_answer(self, trace: AnswerTrace) -> None:
        for listener in self._listeners:
            if listener.wants_text:
                listener.on_answer(trace)


class FirstTokenTimer(ProgressListener):
    """Measures the time to the model's first token."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self.first_token_ms: float | None = None
        """Milliseconds since this was made; None if the model was not asked."""

    def on_tokens(self, num_tokens: int) -> None:
        if num_tokens and self.first_token_ms is None:
            self.first_token_ms = (perf_counter() - self._started) * 1e3


class AnswerCollector(ProgressFanOut):
    """Passes progress on, and collects the model's answers for the trace of a result."""

    def __init__(self, progress: ProgressListener) -> None:
        super().__init__(progress)
        self.wants_text = True
        self._answers: list[AnswerTrace] = []

    def on_answer(self, trace: AnswerTrace) -> None:
        self._answers.append(trace)
        super().on_answer(trace)

    def add_to(self, result: ApplyResult) -> ApplyResult:
        """Return the result with its trace."""
        return replace(result, trace=tuple(self._answers))


Result = TypeVar("Result")

MAX_CONCURRENT_FILES = 16
"""Limit of the files of one apply about which the model is asked concurrently, each in a thread."""

Work = Callable[[RequestContext, ProgressListener], Result]


def run_concurrently(
    works: Sequence[tuple[str, Work[Result]]], context: RequestContext, progress: ProgressListener
) -> list[Result]:
    """Run the work for each path in a thread of its own; return the results in order.

    If one fails, the others are cancelled and its error is raised. A single one runs in this thread. The listener
    receives the paths, the sum of all tokens, and the answers in order.
    """
    if len(works) < 2:
        return [work(context, progress) for _, work in works]
    context = replace(context, cancel=context.cancel.make_child())
    fan_in = _FanInProgress(progress)
    files = [_FileProgress(fan_in, path) for path, _ in works]

    def run(work: Work[Result], file: _FileProgress) -> Result:
        with stop_when(lambda: context.cancel.fault):  # a thread of its own inherits no bound of the editor's work
            return work(context, file)

    with ThreadPoolExecutor(min(len(works), MAX_CONCURRENT_FILES), thread_name_prefix="apply") as threads:
        running: list[Future[Result]] = [
            threads.submit(run, work, file) for (_, work), file in zip(works, files, strict=True)
        ]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:  # also after Ctrl-C
            failed = [future for future in running if future.done() and future.exception()]
            if not all(future.done() for future in running):
                for future in running:
                    future.cancel()  # those that have not started
                context.cancel.cancel()
        if failed:
            failed[0].result()
    for file in files:
        file.report_answers()
    return [future.result() for future in running]


class _FanInProgress:
    """Sums up the tokens of the files of one apply."""

    def __init__(self, progress: ProgressListener) -> None:
        self.progress = progress
        self._lock = Lock()
        self._num_tokens: dict[_FileProgress, int] = {}

    def on_tokens(self, file: _FileProgress, num_tokens: int) -> None:
        with self._lock:
            self._num_tokens[file] = num_tokens
            total = sum(self._num_tokens.values())
        self.progress.on_tokens(total)


class _FileProgress(ProgressListener):
    """Passes on the progress of one of several files, with its path."""

    def __init__(self, fan_in: _FanInProgress, path: str) -> None:
        self._fan_in = fan_in
        self._progress = fan_in.progress
        self._path = path
        self._answers: list[AnswerTrace] = []
        self.wants_text = self._progress.wants_text

    def on_start(self) -> None:
        self._progress.on_start()

    def on_phase(self, phase: str, path: str = "") -> None:
        self._progress.on_phase(phase, path or self._path)

    def on_tokens(self, num_tokens: int) -> None:
        self._fan_in.on_tokens(self, num_tokens)

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        self._progress.on_pieces(region, pieces, path or self._path)

    def on_answer(self, trace: AnswerTrace) -> None:
        self._answers.append(trace)

    def report_answers(self) -> None:
        for trace in self._answers:
            self._progress.on_answer(trace)


@dataclass(slots=True)
class Timings:
    """Sums up the milliseconds of each phase, and reports when one begins. `total_ms` is the time since the start."""

    on_phase: Callable[[str], None] = lambda phase: None
    by_phase: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as `<name>_ms`."""
        started = time.perf_counter()
        self.on_phase(name)
        yield
        self.add({f"{name}_ms": (time.perf_counter() - started) * 1e3})

    def add(self, by_phase: Mapping[str, float]) -> None:
        """Add phases that were timed elsewhere, except their total."""
        for name, value in by_phase.items():
            if name != "total_ms":
                self.by_phase[name] = self.by_phase.get(name, 0.0) + value

    def total(self) -> dict[str, float]:
        """Return all phases and `total_ms`."""
        return self.by_phase | {"total_ms": (time.perf_counter() - self._started) * 1e3}
