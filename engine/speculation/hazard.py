"""How likely the model is to depart from a draft: what its drafter expects, corrected by what the model did so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.types import Draft

LEAST, MOST = 1e-5, 0.98
"""No draft is certain, and none without any hope."""

LOST = 0.25
"""Before anything is known, the hazard of the first token behind a miss, if the drafter expects no larger one."""

LOST_WEIGHT = 2.0
"""How many misses and hits behind a miss that expectation counts for."""

LOST_MEMORY = 64.0
"""Tokens behind misses that are remembered, the last ones most."""

STEADY_WEIGHT = 0.25
"""How many misses, and expected misses, the drafter's own hazards count for."""

STEADY_MEMORY = 512.0
"""Tokens behind hits that are remembered, the last ones most."""


@dataclass(slots=True)
class _Evidence:
    """Of one source: misses behind hits, seen and expected; misses and tokens behind misses. All fade."""

    misses: float = 0.0
    expected: float = 0.0
    lost_misses: float = 0.0
    lost_tokens: float = 0.0


@dataclass(slots=True)
class DraftHazards:
    """The hazards of one request's drafts, by source.

    A model that edits either copies, and then it departs now and then, or it writes something new, and then a draft is
    wrong whatever it says. Which of both it does shows in the last token: had the draft foretold it, or not. So two
    things are learned of every source. Behind a token that was foretold, what the drafter expects is scaled by misses
    seen over misses expected (the mean of a Gamma posterior of that ratio). Behind one that was not, the hazard of the
    next token is the mean of a Beta posterior, whatever the drafter expects, which is its prior.

    Example: three drafts of a source with hazard 0.01 miss at their first token: 0.01, then (0.5 + 1) / (2 + 1) = 0.5,
    then 0.62, ...; had the first 100 tokens of one been right, 0.01 * 0.25 / (0.25 + 1) = 0.002 would be next.
    """

    _on_track: bool | None = None  # None: nothing was foretold yet, so nothing is known but what the drafter says
    _sources: dict[str, _Evidence] = field(default_factory=dict)

    def runs(self, draft: Draft) -> Iterator[tuple[int, float]]:
        """(tokens, hazard of each) along a draft."""
        for place, run in enumerate(draft.runs):
            evidence = self._sources.get(run.source, _NOTHING)
            num_tokens = run.num_tokens
            if place == 0 and self._on_track is False and num_tokens:
                yield 1, _lost(evidence, run.hazard)
                num_tokens -= 1
            if num_tokens:
                yield num_tokens, _steady(evidence, run.hazard)

    def observe(self, draft: Draft, num_right: int, *, missed: bool) -> None:
        """So many tokens of a draft were what the model wrote, and the one behind them was not, if it `missed`.

        Tokens count that were not put before the model, too: what it wrote by itself shows whether they are right.
        """
        left = num_right + missed
        for run in draft.runs:
            num_seen = min(run.num_tokens, left)
            if num_seen:
                left -= num_seen
                evidence = self._sources.setdefault(run.source, _Evidence())
                self._learn(evidence, run.hazard, num_seen, missed=missed and left == 0)

    def observe_silence(self) -> None:
        """The model wrote a token for which there was no draft."""
        self._on_track = False

    def _learn(self, evidence: _Evidence, hazard: float, num_seen: int, *, missed: bool) -> None:
        misses_at_once = missed and num_seen == 1
        if self._on_track is False or (self._on_track is None and misses_at_once):
            fading = 1.0 - 1.0 / LOST_MEMORY
            evidence.lost_misses = evidence.lost_misses * fading + misses_at_once
            evidence.lost_tokens = evidence.lost_tokens * fading + 1.0
            num_seen -= 1
        if num_seen:
            fading = (1.0 - 1.0 / STEADY_MEMORY) ** num_seen
            evidence.misses = evidence.misses * fading + missed
            evidence.expected = evidence.expected * fading + num_seen * _clipped(hazard)
        self._on_track = not missed


_NOTHING = _Evidence()


def _steady(evidence: _Evidence, hazard: float) -> float:
    ratio = (STEADY_WEIGHT + evidence.misses) / (STEADY_WEIGHT + evidence.expected)
    return _clipped(_clipped(hazard) * ratio)


def _lost(evidence: _Evidence, hazard: float) -> float:
    prior = max(LOST, hazard)
    return _clipped((LOST_WEIGHT * prior + evidence.lost_misses) / (LOST_WEIGHT + evidence.lost_tokens))


def _clipped(hazard: float) -> float:
    return min(MOST, max(LEAST, hazard))
