"""Collects what the model was asked and what it answered while one apply goes on, token by token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from agent_runtime.generation.relay import Relay
from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import AnswerTrace, ApplyResult


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
