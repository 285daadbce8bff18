"""The record of the current request, and its outcome for observers."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Self

from agent_runtime.errors import HunkError
from agent_runtime.types import ApplyResult, Certainty, Method, Usage


@dataclass(frozen=True, slots=True)
class Finished:
    """One request that has been answered.

    route: as in the OpenAPI document, such as `/apply`. outcome: `merged`, `rejected`, `noop` or `answered`; else the
    kind of the problem, such as `edit-refused`. timings: milliseconds, as in the answer. edits: who merged each file,
    and how sure that is. first_token_ms: from the request to the model's first token, None where it was not asked.
    """

    route: str
    tenant: str
    outcome: str
    usage: Usage = field(default_factory=Usage)
    timings: Mapping[str, float] = field(default_factory=dict)
    edits: tuple[tuple[Method, Certainty], ...] = ()
    first_token_ms: float | None = None

    @classmethod
    def with_result(cls, route: str, tenant: str, result: ApplyResult, first_token_ms: float | None = None) -> Self:
        """An apply that has its answer, a rejected merge among them."""
        edits = tuple((file.method, file.certainty) for file in result.files)
        return cls(route, tenant, result.status, result.usage, result.timings, edits, first_token_ms)

    @classmethod
    def with_fault(cls, route: str, tenant: str, fault: HunkError) -> Self:
        """A request that was answered with a problem."""
        return cls(route, tenant, fault.kind)


class Observer:
    """Counts what happens; this one cares for nothing. Called from any thread, and has to be quick."""

    def finished(self, request: Finished) -> None:
        """A request has been answered."""


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request. `round` is whose turn it is at the model (`quotas.Turns`), `holder` whose shares it takes of.

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
