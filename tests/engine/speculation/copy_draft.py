"""A draft that copies from known token sequences (the file, the edit) through a pointer that finds its way back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import Draft

MIN_MATCH = 2
"""Fewest output tokens that must stand in a source before a place in it is believed."""

MAX_MATCH = 64
"""How far back two matching places are told apart; code repeats, so short matches mislead."""


@dataclass(frozen=True, slots=True)
class Place:
    """The next token to copy: `sources[source][at]`."""

    source: int
    at: int


class CopyDraft:
    """Copies the first source from its start; after a departure it re-synchronises on the longest matching suffix.

    The sources are, in order of trust, the original file (what most of the output copies) and the edit. When the
    output's last `MIN_MATCH` tokens stand nowhere, one token is taken to be substituted and copying goes on behind
    it. Backward jumps are allowed: a pointer that only runs forward needs a hundred times the passes (design notes,
    section 6).
    """

    def __init__(self, sources: Sequence[Sequence[int]]) -> None:
        self._sources = [list(source) for source in sources]
        self._index: defaultdict[tuple[int, ...], list[Place]] = defaultdict(list)
        for number, source in enumerate(self._sources):
            for end in range(MIN_MATCH, len(source) + 1):
                self._index[tuple(source[end - MIN_MATCH : end])].append(Place(number, end))
        self._place = Place(0, 0)
        self._num_seen = 0

    def propose(self, output_ids: Sequence[int], max_tokens: int) -> Draft:
        """The source's next tokens from where the output seems to stand; empty at a source's end."""
        self._follow(output_ids)
        source = self._sources[self._place.source] if self._sources else []
        return Draft.from_tokens(source[self._place.at : self._place.at + max_tokens])

    def _follow(self, output_ids: Sequence[int]) -> None:
        for seen in range(self._num_seen, len(output_ids)):
            source = self._sources[self._place.source] if self._sources else []
            on_track = self._place.at < len(source) and source[self._place.at] == output_ids[seen]
            substituted = Place(self._place.source, self._place.at + 1)
            self._place = substituted if on_track else self._resync(output_ids[: seen + 1]) or substituted
        self._num_seen = len(output_ids)

    def _resync(self, output_ids: Sequence[int]) -> Place | None:
        """The place behind the longest match of the output's tail; of equal ones, the nearest, forward ones first."""
        places = self._index.get(tuple(output_ids[-MIN_MATCH:]), ())
        return max(places, key=lambda place: self._rank(place, output_ids), default=None)

    def _rank(self, place: Place, output_ids: Sequence[int]) -> tuple[int, bool, int, int]:
        same_source = place.source == self._place.source
        distance = place.at - self._place.at
        nearness = -abs(distance) if same_source else 0
        return self._match_len(place, output_ids), same_source and distance >= 0, nearness, -place.source

    def _match_len(self, place: Place, output_ids: Sequence[int]) -> int:
        source, length = self._sources[place.source], 0
        limit = min(MAX_MATCH, place.at, len(output_ids))
        while length < limit and source[place.at - 1 - length] == output_ids[-1 - length]:
            length += 1
        return length
