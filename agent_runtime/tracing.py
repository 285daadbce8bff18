"""Collects what the model was asked and what it answered while one apply goes on, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agent_runtime.merger import Piece, Watcher
from agent_runtime.types import AnswerTrace, ApplyResult


class Tracing(Watcher):
    """Passes on to another watcher all that it is told, and keeps the answers."""

    wants_text = True

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self.answers: list[AnswerTrace] = []

    def began(self, stop: Callable[[], None]) -> None:
        """Pass it on."""
        self._watcher.began(stop)

    def entered(self, phase: str) -> None:
        """Pass it on."""
        self._watcher.entered(phase)

    def wrote(self, num_tokens: int) -> None:
        """Pass it on."""
        self._watcher.wrote(num_tokens)

    def wrote_pieces(self, region: int, pieces: Sequence[Piece]) -> None:
        """Pass it on."""
        self._watcher.wrote_pieces(region, pieces)

    def answered(self, trace: AnswerTrace) -> None:
        """Keep it, and pass it on."""
        self.answers.append(trace)
        self._watcher.answered(trace)


def traced(wanted: bool, watcher: Watcher, work: Callable[[Watcher], ApplyResult]) -> ApplyResult:
    """What `work` comes to, with its trace where one is wanted."""
    if not wanted:
        return work(watcher)
    tracing = Tracing(watcher)
    result = work(tracing)
    return replace(result, trace=tuple(tracing.answers))
