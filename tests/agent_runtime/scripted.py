"""A stand-in for a model, for answers that a real one cannot be brought to give on demand."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent_runtime.errors import Cancelled
from agent_runtime.llm.interface import ModelChoice, ModelMerge, ModelTask
from agent_runtime.request_context import Piece, ProgressListener, RequestContext
from agent_runtime.telemetry.engine_metrics import EngineReport
from agent_runtime.types import ApplyRequest, ScoredReading, Usage


@dataclass
class ScriptedMerger:
    """Answers every edit with `text`; with `hold`, writes a token every 10 ms until it is set.

    `choice` is the reading that it takes; None: it is in doubt about all; "write": it writes if it may, as a model does
    that has nothing to choose from. `tells_text`: what it writes is shown to whoever wants to see it. `num_written`
    counts the answers that it wrote. `cancelled` is set when any request is over, `stopped` by who wants all to end.
    """

    text: str = ""
    truncated: bool = False
    name: str = "scripted"
    hold: threading.Event | None = None
    choice: int | Literal["write"] | None = "write"
    seen: list[ApplyRequest] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)
    stopped: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    tells_text: bool = False
    broken: Exception | None = None
    num_written: int = 0

    def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelMerge:
        """The scripted answer."""
        self.seen.append(task.request)
        self.num_written += 1
        context.release_slot()
        progress.on_start()
        own = threading.Event()
        for event in (own, self.cancelled):
            context.cancel.add_callback(event.set)
        num_tokens = 0
        while self.hold is not None and not self.hold.wait(0.01):
            if own.is_set() or self.stopped.is_set():
                raise Cancelled("whoever asked has left")
            num_tokens += 1
            progress.on_tokens(num_tokens)
            if self.tells_text and progress.wants_text:
                progress.on_pieces(0, [Piece("token ", "generated")])
        return ModelMerge(self.text, self.truncated, Usage(prompt=10, recomputed=10, completion=5, forwards=2), {})

    def choose(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> ModelChoice | ModelMerge:
        """The scripted choice."""
        may_write = task.request.least_certainty == "model"
        if (self.choice == "write" and may_write) or (self.choice is None and task.request.writes_in_doubt):
            return self.merge(task, context, progress)
        self.seen.append(task.request)
        readings = (ScoredReading("first", 0.3, -2.0, -3.0), ScoredReading("second", 0.7, -1.0, -1.5))
        number = None if self.choice == "write" else self.choice
        confidence = None if number is None else readings[number].score
        return ModelChoice(number, readings, Usage(prompt=10, recomputed=10, forwards=1), {}, confidence=confidence)

    @property
    def fault(self) -> Exception | None:
        return self.broken

    def reports(self) -> Sequence[EngineReport]:
        """There is no engine."""
        return ()

    def close(self) -> None:
        """Remember it."""
        self.closed.set()
