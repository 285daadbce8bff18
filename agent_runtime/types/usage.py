"""Tokens by reason: what an answer took of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class SourceUsage:
    """Draft tokens of one source, such as `merge`: `drafted` = `accepted` + `rejected`."""

    drafted: int = 0
    accepted: int = 0
    rejected: int = 0

    def plus(self, other: SourceUsage) -> SourceUsage:
        """The sum of both."""
        return SourceUsage(self.drafted + other.drafted, self.accepted + other.accepted, self.rejected + other.rejected)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens by reason. `prompt` splits into `cached` + `reused_approximate` + `recomputed`; `forwards` counts passes.

    `recomputed_by` splits `recomputed` by why those tokens were run (`engine.reuse.RecomputeReason`), as far as known.
    `drafted` = `accepted` + `rejected` counts draft tokens that were put before the model; `by_source` splits them by
    where they were copied from. `prefill_forwards` are those of the `forwards` that ran the prompt's tokens.
    `near_ties` counts greedy choices that rounding may turn (`engine.types.GenerationUsage`).
    `prefix_hit_rate` is `cached / prompt` in [0, 1].
    """

    prompt: int = 0
    cached: int = 0
    reused_approximate: int = 0
    recomputed: int = 0
    completion: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    forwards: int = 0
    prefill_forwards: int = 0
    near_ties: int = 0
    prefix_hit_rate: float = 0.0
    by_source: Mapping[str, SourceUsage] = field(default_factory=dict)
    recomputed_by: Mapping[str, int] = field(default_factory=dict)


def total_usage(parts: Iterable[Usage]) -> Usage:
    """The sum of what several applies used."""
    parts = list(parts)
    derived = ("prefix_hit_rate", "by_source", "recomputed_by")
    names = [count.name for count in fields(Usage) if count.name not in derived]
    counts = {name: sum(getattr(part, name) for part in parts) for name in names}
    recomputed_by = Counter[str]()
    for part in parts:
        recomputed_by.update(part.recomputed_by)
    by_source: dict[str, SourceUsage] = {}
    for source, usage in (each for part in parts for each in part.by_source.items()):
        by_source[source] = by_source.get(source, SourceUsage()).plus(usage)
    rate = counts["cached"] / counts["prompt"] if counts["prompt"] else 0.0
    return Usage(**counts, prefix_hit_rate=rate, by_source=by_source, recomputed_by=dict(recomputed_by))
