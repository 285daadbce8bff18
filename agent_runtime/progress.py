"""Progress of an apply: listeners, phase timings, concurrent work on several files, and traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from threading import Lock
from time import perf_counter
from typing import Literal, TypeVar

from agent_runtime.errors import Cancelled, HunkError
from agent_runtime.types import AnswerTrace, ApplyResult


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one token, or of several where one alone is not text, and how the model came by it."""

    text: str
    origin: Literal["copied", "generated"]


class Watcher:
    """Follows the model's work on one apply, which may ask it several times; this one cares for nothing."""

    wants_text = False
    """Whether `wrote_pieces` and `answered` are called: it takes a little time to make text of tokens."""

    @property
    def is_left(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return False

    @property
    def ends_with(self) -> HunkError:
        """What the work for it ends with once `is_left`."""
        return Cancelled("whoever asked has left")

    def began(self, stop: Callable[[], None]) -> None:
        """The model was asked; calling `stop`, from any thread, ends the apply with Cancelled."""

    def entered(self, phase: str, path: str = "") -> None:
        """Another phase begins, named as in `timings` without its `_ms`: parse, merge, prefill, decode, verify, ...

        `path` is the file's where several are worked on at once.
        """

    def wrote(self, num_tokens: int) -> None:
        """Another forward pass is over; so many tokens are written so far."""

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """A pass wrote these tokens of the answer for one region (from 0) of the file; `path` as above.

        Together they are the answer, without its closing tag. Behind the phase `prompt` an answer begins anew.
        """

    def answered(self, trace: AnswerTrace) -> None:
        """The model has answered one question."""


class Relay(Watcher):
    """Tells another watcher all that it is told."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.wants_text = watcher.wants_text

    @property
    def is_left(self) -> bool:
        """As the other knows it."""
        return self._watcher.is_left

    @property
    def ends_with(self) -> HunkError:
        """As the other has it."""
        return self._watcher.ends_with

    def began(self, stop: Callable[[], None]) -> None:
        """Pass it on."""
        self._watcher.began(stop)

    def entered(self, phase: str, path: str = "") -> None:
        """Pass it on."""
        self._watcher.entered(phase, path)

    def wrote(self, num_tokens: int) -> None:
        """Pass it on."""
        self._watcher.wrote(num_tokens)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Pass it on."""
        self._watcher.wrote_pieces(region, pieces, path)

    def answered(self, trace: AnswerTrace) -> None:
        """Pass it on."""
        self._watcher.answered(trace)


class FirstToken(Relay):
    """Notes when the model's first token came."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher)
        self._started = perf_counter()
        self.after_ms: float | None = None
        """From when this was made; None where the model was not asked."""

    def wrote(self, num_tokens: int) -> None:
        """Note it, and pass it on."""
        if num_tokens and self.after_ms is None:
            self.after_ms = (perf_counter() - self._started) * 1e3
        super().wrote(num_tokens)


Result = TypeVar("Result")

AT_ONCE = 16
"""Files of one apply for which the model is asked at once, a thread each; others come as these finish."""

Works = Sequence[tuple[str, Callable[[Watcher], Result]]]
"""Each piece of work, and the path of the file that it is about."""


def at_once(works: Works[Result], watcher: Watcher) -> list[Result]:
    """What each comes to, in their order; where one fails, the others are stopped and its error is raised.

    The watcher is told the paths, the sum of what all have written, and the answers in the order of the works.
    """
    if len(works) < 2:
        return [work(watcher) for _, work in works]
    crowd = _Crowd(watcher)
    members = [_Member(crowd, path) for path, _ in works]
    with ThreadPoolExecutor(min(len(works), AT_ONCE), thread_name_prefix="apply") as threads:
        running: list[Future[Result]] = [
            threads.submit(copy_context().run, work, member) for (_, work), member in zip(works, members, strict=True)
        ]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:  # also where somebody presses Ctrl-C meanwhile
            failed = [one for one in running if one.done() and one.exception()]
            if not all(one.done() for one in running):
                for one in running:
                    one.cancel()  # those that have not begun
                crowd.stop()
        if failed:
            failed[0].result()
    for member in members:
        member.tell_answers()
    return [one.result() for one in running]


class _Crowd(Relay):
    """What the pieces of work have in common."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher)
        self._lock = Lock()
        self._stops: list[Callable[[], None]] = []
        self._is_stopped = False
        self._written: dict[int, int] = {}

    def began(self, stop: Callable[[], None]) -> None:
        """Pass it on, and remember it, or stop at once where another has failed."""
        with self._lock:
            self._stops.append(stop)
            is_stopped = self._is_stopped
        super().began(stop)
        if is_stopped:
            stop()

    def wrote_in(self, member: int, num_tokens: int) -> None:
        """Tell the sum."""
        with self._lock:
            self._written[member] = num_tokens
            total = sum(self._written.values())
        self.wrote(total)

    def stop(self) -> None:
        """One has failed: the others are in vain."""
        with self._lock:
            self._is_stopped = True
            stops = list(self._stops)
        for stop in stops:
            stop()


class _Member(Relay):
    """Follows one piece of work."""

    def __init__(self, crowd: _Crowd, path: str) -> None:
        super().__init__(crowd)
        self._crowd = crowd
        self._path = path
        self._answers: list[AnswerTrace] = []

    def entered(self, phase: str, path: str = "") -> None:
        """Pass it on with the path."""
        super().entered(phase, path or self._path)

    def wrote(self, num_tokens: int) -> None:
        """Pass on the sum."""
        self._crowd.wrote_in(id(self), num_tokens)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Pass it on with the path."""
        super().wrote_pieces(region, pieces, path or self._path)

    def answered(self, trace: AnswerTrace) -> None:
        """Keep it until all have ended."""
        self._answers.append(trace)

    def tell_answers(self) -> None:
        """Pass them on."""
        for trace in self._answers:
            super().answered(trace)


class Tracing(Relay):
    """Passes on to another watcher all that it is told, and keeps the answers."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__(watcher)
        self.wants_text = True
        self.answers: list[AnswerTrace] = []

    def answered(self, trace: AnswerTrace) -> None:
        """Keep it, and pass it on."""
        self.answers.append(trace)
        super().answered(trace)


def traced(wanted: bool, watcher: Watcher, work: Callable[[Watcher], ApplyResult]) -> ApplyResult:
    """What `work` comes to, with its trace where one is wanted."""
    if not wanted:
        return work(watcher)
    tracing = Tracing(watcher)
    result = work(tracing)
    return replace(result, trace=tuple(tracing.answers))


@dataclass(slots=True)
class Timings:
    """Adds up the milliseconds of each phase, whose beginning `entered` is told.

    `total_ms` runs from the start to the end.
    """

    entered: Callable[[str], None] = lambda phase: None
    by_phase: dict[str, float] = field(default_factory=dict)
    _started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as `<name>_ms`."""
        started = time.perf_counter()
        self.entered(name)
        yield
        self.add({f"{name}_ms": (time.perf_counter() - started) * 1e3})

    def add(self, by_phase: Mapping[str, float]) -> None:
        """Add phases that were timed elsewhere; a total among them is left out."""
        for name, value in by_phase.items():
            if name != "total_ms":
                self.by_phase[name] = self.by_phase.get(name, 0.0) + value

    def finished(self) -> dict[str, float]:
        """All phases and `total_ms`."""
        return self.by_phase | {"total_ms": (time.perf_counter() - self._started) * 1e3}
