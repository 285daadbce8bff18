"""How likely the model is to depart from a planned token, from the kind of place it is copied from."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from enum import Enum

from engine.speculation.plan import Leg, Plan, Trust
from engine.speculation.sources import Sources
from engine.types import DraftRun


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
