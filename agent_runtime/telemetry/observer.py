"""The outcome of a request, and the interface of those who count outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from agent_runtime.errors import HunkError
from agent_runtime.types import ApplyResult, Certainty, Method, Usage


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of one request for an edit or the model.

    route: as in the OpenAPI document, such as `/apply`. outcome: `merged`, `rejected`, `noop` or `answered`; for an
    error its kind, such as `edit-refused`. timings: milliseconds, as in the answer. edits: for each file who merged it
    and how sure that is. first_token_ms: from the request to the model's first token, None if it was not asked.
    """

    route: str
    tenant: str
    outcome: str
    usage: Usage = field(default_factory=Usage)
    timings: Mapping[str, float] = field(default_factory=dict)
    edits: tuple[tuple[Method, Certainty], ...] = ()
    first_token_ms: float | None = None

    @classmethod
    def from_result(cls, route: str, tenant: str, result: ApplyResult, first_token_ms: float | None = None) -> Self:
        """Return the outcome of an apply that has a result, which may be a rejected merge."""
        edits = tuple((file.method, file.certainty) for file in result.files)
        return cls(route, tenant, result.status, result.usage, result.timings, edits, first_token_ms)

    @classmethod
    def from_fault(cls, route: str, tenant: str, fault: HunkError) -> Self:
        """Return the outcome of a request that failed."""
        return cls(route, tenant, fault.kind)


class Observer:
    """Receives the outcome of each request. This one ignores it. Called from any thread; must return quickly."""

    def on_outcome(self, outcome: RequestOutcome) -> None:
        """Receive the outcome of one request."""
