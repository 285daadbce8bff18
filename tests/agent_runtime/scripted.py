"""A stand-in for a model, for answers that a real one cannot be brought to give on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from agent_runtime.types import ApplyRequest, ModelMerge, StepHook, Usage


@dataclass
class ScriptedMerger:
    """Answers every edit with `text`; with `hold`, writes a token every 10 ms until it is set."""

    text: str = ""
    truncated: bool = False
    name: str = "scripted"
    hold: threading.Event | None = None
    seen: list[ApplyRequest] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def merge(self, text: str, request: ApplyRequest, on_step: StepHook) -> ModelMerge:
        """The scripted answer."""
        self.seen.append(request)
        num_tokens = 0
        try:
            while self.hold is not None and not self.hold.wait(0.01):
                num_tokens += 1
                on_step(num_tokens)
        except BaseException:
            self.cancelled.set()
            raise
        return ModelMerge(self.text, self.truncated, Usage(prompt=10, recomputed=10, completion=5, forwards=2), {})
