"""How likely the model is to depart from a draft: what its drafter expects, corrected by what the model did so far."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.types import Draft

LEAST, MOST = 1e-5, 0.98
"""No draft is certain, and none without any hope."""

LOST = 0.15
"""The least hazard of the first token behind a miss before anything is known: what it is where an oracle edits files
(`benchmarks.forwards`)."""

WEIGHT = 0.25, 0.5
"""How many misses the drafter's expectation counts for, of tokens behind hits and of those behind misses. Of the values
tried, those that took the least time on real edits, with and without slips of the model."""

MEMORY = 512.0, 64.0
"""How many tokens behind hits and behind misses are remembered, the last ones most."""


@dataclass(slots=True)
class _Misses:
    """Misses that were seen, and misses that were expected, of tokens of one kind; both fade."""

    weight: float
    memory: float
    seen: float = 0.0
    expected: float = 0.0

    def learn(self, num_tokens: int, hazard: float, *, missed: bool) -> None:
        fading = (1.0 - 1.0 / self.memory) ** num_tokens
        self.seen = self.seen * fading + missed
        self.expected = self.expected * fading + num_tokens * hazard

    def corrected(self, hazard: float) -> float:
        return _clipped(hazard * (self.weight + self.seen) / (self.weight + self.expected))


@dataclass(slots=True)
class _Evidence:
    """Of one source."""

    behind_hits: _Misses = field(default_factory=lambda: _Misses(WEIGHT[0], MEMORY[0]))
    behind_misses: _Misses = field(default_factory=lambda: _Misses(WEIGHT[1], MEMORY[1]))


@dataclass(slots=True)
class DraftHazards:
    """The hazards of one request's drafts, by source.

    A model that edits either copies, and then it departs now and then, or it writes something new, and then a draft is
    wrong whatever it says. Which of both it does shows in the last token: had the draft foretold it, or not. So two
    things are learned of every source: how often it is wrong behind a token that was foretold, and behind one that was
    not. Each scales what the drafter expects by misses seen over misses expected, the mean of that ratio's Gamma
    posterior.

    Example: drafts with hazard 0.01 that miss at their first token: 0.01 at first, then 0.15 * (0.5 + 1) / (0.5 + 0.15)
    = 0.35, then 0.47, ...; had the first 100 tokens of one been right, 0.01 * 0.25 / (0.25 + 1) = 0.002 would be next.
    """

    _on_track: bool | None = None  # None: nothing was foretold yet, so nothing is known but what the drafter says
    _sources: dict[str, _Evidence] = field(default_factory=dict)

    def runs(self, draft: Draft) -> Iterator[tuple[int, float]]:
        """(tokens, hazard of each) along a draft."""
        is_lost = self._on_track is False
        for run in draft.runs:
            evidence, num_tokens = self._sources.get(run.source, _NOTHING), run.num_tokens
            if is_lost and num_tokens:
                yield 1, evidence.behind_misses.corrected(_behind_miss(run.hazard))
                num_tokens, is_lost = num_tokens - 1, False
            if num_tokens:
                yield num_tokens, evidence.behind_hits.corrected(_clipped(run.hazard))

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
            evidence.behind_misses.learn(1, _behind_miss(hazard), missed=misses_at_once)
            num_seen -= 1
        if num_seen:
            evidence.behind_hits.learn(num_seen, _clipped(hazard), missed=missed)
        self._on_track = not missed


_NOTHING = _Evidence()


def _behind_miss(hazard: float) -> float:
    return _clipped(max(LOST, hazard))


def _clipped(hazard: float) -> float:
    return min(MOST, max(LEAST, hazard))
