"""What the service tells whoever counts: one value for every request that asked for an edit or for the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent_runtime.types import Method, Usage


@dataclass(frozen=True, slots=True)
class Finished:
    """One request that has been answered.

    route: as in the OpenAPI document, such as `/apply`. outcome: `merged`, `rejected`, `noop` or `answered`; else the
    kind of the problem, such as `edit-refused`. timings: milliseconds, as in the answer. first_token_ms: from
    the request to the model's first token, None where it was not asked.
    """

    route: str
    tenant: str
    outcome: str
    usage: Usage = field(default_factory=Usage)
    timings: Mapping[str, float] = field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    first_token_ms: float | None = None


class Observer:
    """Counts what happens; this one cares for nothing. Called from any thread, and has to be quick."""

    def finished(self, request: Finished) -> None:
        """A request has been answered."""
