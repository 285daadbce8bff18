"""Departures that are foreseen: what a pass showed behind the place where the model left its draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.speculation.plan import Plan

FEWEST_AGREEING = 8
"""So many rows behind a departure must be as drafted before one that is not is believed: the rows directly behind it
follow a token that was not written, and mostly show that."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The model is going to write `token_id` where `drafted` was drafted."""

    drafted: int
    token_id: int


class Foresight:
    """Foreseen departures by place in the sources: what is found behind this departure stands at the same places.

    Of each pass the first row counts that differs behind the departure; those behind it follow two wrong tokens.
    """

    def __init__(self) -> None:
        self._by_place: dict[int, Foreseen] = {}

    def observe(self, places: Sequence[int], draft_ids: Sequence[int], likeliest_ids: Sequence[int]) -> None:
        """A pass over drafted tokens, copied from these places; `likeliest_ids[i]` is what the model wanted for i.

        What it now wants as drafted, or has written, is foreseen no longer.
        """
        num_shown = min(len(draft_ids), len(likeliest_ids))
        differing = [at for at in range(num_shown) if draft_ids[at] != likeliest_ids[at]]
        num_written = differing[0] + 1 if differing else num_shown
        if self._by_place:
            for at, place in enumerate(places[:num_shown]):
                known = self._by_place.get(place)
                if known is not None and (at < num_written or likeliest_ids[at] != known.token_id):
                    del self._by_place[place]
        if len(differing) > 1 and differing[1] - num_written >= FEWEST_AGREEING:
            at = differing[1]
            self._by_place[places[at]] = Foreseen(draft_ids[at], likeliest_ids[at])

    def first(self, plan: Plan, start: int, end: int) -> int | None:
        """Which of the planned tokens [start, end) is the first that the model is foreseen not to write."""
        if not self._by_place:
            return None
        planned = zip(plan.places[start:end], plan.token_ids[start:end], strict=True)
        for at, (place, token_id) in enumerate(planned, start):
            known = self._by_place.get(place)
            if known is not None and known.drafted == token_id and place not in plan.turned:
                return at
        return None

    def token_at(self, place: int) -> int:
        """What the model is going to write at a place at which it departs."""
        return self._by_place[place].token_id
