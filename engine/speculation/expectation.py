"""The probability that the model accepts a drafted token."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from engine.speculation.copy_plan import Leg, Plan, Trust
from engine.speculation.sources import Sources
from engine.types import Draft, DraftRun


class Kind(Enum):
    """Kinds of planned tokens."""

    CERTAIN = "copy of the only merge"
    CERTAIN_BORDER = "where a hunk of the only merge begins or ends"
    LIKELY = "copy of the best of several merges"
    LIKELY_BORDER = "where a hunk of one of several merges begins or ends"
    UNMERGED = "copy of the original without a merge"
    MATCHED = "first token behind a long match"
    WEAK = "first token behind a short match"
    GUESSED = "first token behind a guess"
    FORESEEN = "token that an earlier pass showed"
    FOUND = "copy behind a match"
    FOUND_WEAK = "copy behind a short match or a guess"
    RETURN = "first token behind a block that was copied"


class Expectation:
    """Names the sources of planned tokens, with the hazard of each kind."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._borders: dict[int, list[int]] = {}

    def runs(self, plan: Plan, start: int, end: int) -> tuple[DraftRun, ...]:
        """The runs of planned tokens [start, end), in order; they cover all of them."""
        runs: list[DraftRun] = []
        for text, kind, num_tokens in self.kinds(plan, start, end):
            source, hazard = self._sources.names[text], HAZARDS[kind]
            if runs and runs[-1].source == source and runs[-1].hazard == hazard:
                runs[-1] = DraftRun(source, runs[-1].num_tokens + num_tokens, hazard)
            else:
                runs.append(DraftRun(source, num_tokens, hazard))
        return tuple(runs)

    def kinds(self, plan: Plan, start: int, end: int) -> Iterator[tuple[int, Kind, int]]:
        """(text, kind, number of tokens) along planned tokens [start, end)."""
        legs = plan.legs
        first = max(0, bisect_right(legs, start, key=lambda leg: leg.start) - 1)
        for number in range(first, len(legs)):
            leg_end = legs[number + 1].start if number + 1 < len(legs) else len(plan.token_ids)
            low, high = max(start, legs[number].start), min(end, leg_end)
            if low < high:
                yield from self._along(plan, legs[number], low, high)

    def _along(self, plan: Plan, leg: Leg, low: int, high: int) -> Iterator[tuple[int, Kind, int]]:
        if low == leg.start and leg.trust in _FIRST_KINDS:
            yield leg.text, _FIRST_KINDS[leg.trust], 1
            low += 1
        steady, border = self._steady(leg)
        for place in self._borders_of(leg.text) if border is not steady else ():
            at = bisect_left(plan.places, place, low, high) if low < high else high
            if at < high and plan.places[at] == place:
                if low < at:
                    yield leg.text, steady, at - low
                yield leg.text, border, 1
                low = at + 1
        if low < high:
            yield leg.text, steady, high - low

    def _steady(self, leg: Leg) -> tuple[Kind, Kind]:
        """The kinds of a leg's tokens: in general, and at the borders of hunks."""
        if leg.text < self._sources.original:
            several = self._sources.original > 1
            return (Kind.LIKELY, Kind.LIKELY_BORDER) if several else (Kind.CERTAIN, Kind.CERTAIN_BORDER)
        if leg.trust is Trust.FIRST:
            return Kind.UNMERGED, Kind.UNMERGED
        kind = Kind.FOUND if leg.trust in (Trust.MATCHED, Trust.ALONG) else Kind.FOUND_WEAK
        return kind, kind

    def _borders_of(self, text: int) -> list[int]:
        """Places of a whole file where it, or another, begins or ends to differ from the original."""
        if text not in self._borders:
            own = self._sources.hunks[text]
            found = {place for hunk in own.hunks for place in (hunk.start, hunk.end)}
            for other in self._sources.hunks[: self._sources.original]:
                found |= {own.new_place(place) for hunk in other.hunks for place in (hunk.old_start, hunk.old_end)}
            self._borders[text] = sorted(found)
        return self._borders[text]


_FIRST_KINDS = {
    Trust.MATCHED: Kind.MATCHED,
    Trust.WEAK: Kind.WEAK,
    Trust.GUESSED: Kind.GUESSED,
    Trust.ALONG: Kind.RETURN,
    Trust.FORESEEN: Kind.FORESEEN,
}

HAZARDS = {
    Kind.CERTAIN: 0.0003,
    Kind.CERTAIN_BORDER: 0.13,
    Kind.LIKELY: 0.0005,
    Kind.LIKELY_BORDER: 0.054,
    Kind.UNMERGED: 0.001,
    Kind.MATCHED: 0.15,
    Kind.WEAK: 0.15,
    Kind.GUESSED: 0.9,
    Kind.FORESEEN: 0.2,
    Kind.FOUND: 0.0014,
    Kind.FOUND_WEAK: 0.003,
    Kind.RETURN: 0.05,
}
"""Misses a token, counted on the cases of `benchmarks.forwards`: an oracle target and 600 snippets of six styles, a
third of the edits held out; 2.9 million tokens, 985 misses. Plain copies missed at 0.00004 (CERTAIN) to 0.0005
(UNMERGED); a model slips where an oracle does not, so these are taken to miss a few times as often. What is seen of a
model corrects all of them (`hazard`). FORESEEN is what a real model missed: 18 of 85, in 56 snippets by the 0.5B."""

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
