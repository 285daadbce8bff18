"""What is noted of the request that is being answered, wherever the work on it is done."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from agent_runtime.telemetry.observer import Finished, Observer


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request. `round` is whose turn it is at the model (`limiting.Turns`), `holder` whose shares it takes of.

    `outcome` and the tokens stay empty where it asked for no edit and no model.
    """

    round: int = 0
    holder: str = ""
    outcome: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    approximate_tokens: int = 0
    completion_tokens: int = 0


CURRENT: ContextVar[RequestRecord | None] = ContextVar("hunk_request", default=None)
"""Threads that work on a request have a copy of its context, and so the same record."""


def current_round() -> int:
    """The round of the request that is worked on, 0 outside of a service."""
    record = CURRENT.get()
    return 0 if record is None else record.round


def current_holder() -> str:
    """Whose shares of the service the request takes of that is worked on, '' outside of a service."""
    record = CURRENT.get()
    return "" if record is None else record.holder


class RecordObserver(Observer):
    """Notes in the record of the current request what it took; one of several parts (a batch) adds to it."""

    def finished(self, request: Finished) -> None:
        """Note it."""
        record = CURRENT.get()
        if record is None:
            return
        usage = request.usage
        record.outcome = request.outcome if record.outcome in ("", request.outcome) else "mixed"
        record.prompt_tokens += usage.prompt
        record.cached_tokens += usage.cached
        record.approximate_tokens += usage.reused_approximate
        record.completion_tokens += usage.completion
