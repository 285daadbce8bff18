"""What the service tells whoever counts: one value for every request that asked for an edit or for the model."""

from __future__ import annotations

from collections.abc import Mapping
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
