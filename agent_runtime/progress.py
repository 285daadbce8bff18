"""Does several pieces of work on one apply at once, so that those which ask the model share its passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from threading import Lock
from typing import TypeVar

from agent_runtime.generation.relay import Relay
from agent_runtime.generation.watcher import Piece, Watcher
from agent_runtime.types import AnswerTrace

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
