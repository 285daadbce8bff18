"""Where another merge goes on otherwise than the one that is planned, as the branch of a draft."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from engine.speculation.hunks import Hunk, Hunks
from engine.speculation.plan import Plan, Trust
from engine.speculation.sources import Sources
from engine.types import DraftBranch

CHANCE, CHANCE_BEHIND_DEPARTURE = 0.12, 0.35
"""How often the model goes on as the other merge does where the two part: while it has written what was planned from
the start, and where it has left the plan before. Counted on the cases of `benchmarks.forwards` with several merges:
97 of 775 and 39 of 110 times; in 6 more it went elsewhere."""

HAZARD = 0.006
"""Misses a token along the other merge: 100 on 18,000 tokens of these cases."""


class Partings:
    """Compares the merge that a plan follows with the other ones, each pair once, when it is needed."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._hunks: dict[tuple[int, int], list[Hunk]] = {}

    def branch(self, plan: Plan, start: int, end: int) -> DraftBranch | None:
        """The first place of planned tokens [start, end) where another whole file differs, and how that one goes on.

        None where none does while the plan copies from one of them, unchanged. It goes on to the file's end, or as far
        as the plan does: how much of it is run is for the cost model to say.
        """
        number = bisect_right(plan.legs, start, key=lambda leg: leg.start) - 1
        if self._sources.original < 2 or number < 0 or not plan.reindent_at(start).is_identity:
            return None
        text = plan.legs[number].text
        leg_end = plan.legs[number + 1].start if number + 1 < len(plan.legs) else len(plan.token_ids)
        end = min(end, leg_end)
        if text >= self._sources.original or start >= end:
            return None
        found = [
            (at, other, place)
            for other in range(self._sources.original)
            if other != text
            for at, place in self._next(plan, text, other, start, end)
        ]
        if not found:
            return None
        at, other, place = min(found)
        token_ids = self._sources.texts.tokens(place, min(place + end - at, self._sources.texts.end_of(place)))
        is_first = not number and plan.legs[number].trust is Trust.FIRST
        chance = CHANCE if is_first else CHANCE_BEHIND_DEPARTURE
        return DraftBranch(at - start, token_ids, chance, self._sources.names[other], HAZARD)

    def _next(self, plan: Plan, text: int, other: int, start: int, end: int) -> Sequence[tuple[int, int]]:
        """The index of the planned token where the other one parts next, and its place there, if it does."""
        texts, hunks = self._sources.texts, self._between(other, text)
        number = bisect_left(hunks, plan.places[start], key=lambda hunk: hunk.old_start)
        if number == len(hunks):
            return ()
        place, own = hunks[number].start, hunks[number].old_start
        while place < texts.end_of(hunks[number].start) and texts.token(place) == texts.token(own):
            place, own = place + 1, own + 1
        at = bisect_left(plan.places, own, start, end)
        is_there = at < end and plan.places[at] == own and plan.token_ids[at] == texts.token(own)
        return [(at, place)] if is_there and place < texts.end_of(hunks[number].start) else ()

    def _between(self, one: int, other: int) -> list[Hunk]:
        if (one, other) not in self._hunks:
            texts = self._sources.texts
            (start, ids), (old_start, old_ids) = (
                (texts.starts[number], texts.tokens(texts.starts[number], texts.ends[number]))
                for number in (one, other)
            )
            self._hunks[one, other] = Hunks(ids, old_ids, start, old_start).hunks
        return self._hunks[one, other]
