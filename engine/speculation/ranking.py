"""Which place of the sources the output has come to, where the model left the one that was expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.speculation.sources import Sources

LONGEST_TAIL = 32
"""How many of the output's last tokens are looked for."""

TELLING = 8
"""So many matching tokens tell most of what a match can tell; code repeats itself for longer, too."""

EACH, EACH_MORE = 1.6, 0.1
"""What each matching token is worth, up to TELLING and behind."""

GUIDE, OTHER_MERGE, UPDATE, OUTPUT = 0.5, -2.0, 0.5, -3.0
"""What is added for the whole file that is being followed, for another merge, for the update, and for the output."""

PER_DOUBLING, BACKWARD = 0.25, 1.5
"""What is taken off each time the distance in the original doubles, and for going back."""

ALIGNED = 5.0
"""What is added where another whole file is at the very place at which it differs from the one followed."""

SUBSTITUTED = 1.5
"""What it is worth to take one token to be substituted: about a single matching token close by."""

FEWEST_ELSEWHERE, FEWEST_ONWARD = 2, 3
"""The fewest matching tokens that are believed, elsewhere than in the update, and behind a block of the update."""


@dataclass(frozen=True, slots=True)
class Course:
    """Where copying has come to: the whole file that is followed, and the last place in one that was expected."""

    guide: int
    anchor: int


@dataclass(frozen=True, slots=True)
class Match:
    """The output's last `length` tokens stand before `place`."""

    place: int
    length: int
    score: float


class Ranking:
    """Ranks places by what stands before them: the longer it is the output's tail, and the nearer, the better.

    Weights were set on half of the edits of `benchmarks.forwards` (a third held out by name, six styles of snippets).
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def after_departure(self, tail: Sequence[int], expected: int | None, course: Course) -> Match | None:
        """The likeliest place behind `tail`, whose last token was not the one at place `expected`.

        None: one that no source has; what stands behind the expected token is the best guess then, if there is any.
        """
        begun = self._sources.begun_indent(tail)
        aligned = None if expected is None else self._sources.old_place(expected)
        matches = []
        for place, length in self._places(tail, self._sources.output):
            number = self._sources.texts.text_of(place)
            is_alternative = (
                aligned is not None
                and number not in (course.guide, self._sources.update)
                and self._sources.old_place(place) == aligned + 1
            )
            exact = self._sources.texts.tokens(place, place + len(begun)) == begun
            length += bool(begun) and exact
            if is_alternative or length >= FEWEST_ELSEWHERE or number == self._sources.update:
                score = self._score(place, length, course) + is_alternative * ALIGNED
                matches.append(Match(place, length, score))
        best = max(matches, key=lambda match: match.score, default=None)
        if begun and expected is not None:
            best = self._same_line(matches, begun, self._sources.texts.line_start(expected)) or best
        within = expected is not None and expected < self._sources.texts.end_of(expected)
        return None if best is None or (within and best.score <= SUBSTITUTED) else best

    def onward(self, tail: Sequence[int], course: Course) -> Match | None:
        """Where a whole file goes on behind `tail`, a block of the update or of the output that was copied."""
        matches = [
            Match(place, length, self._score(place, length, course))
            for place, length in self._places(tail, self._sources.original)
            if length >= FEWEST_ONWARD
        ]
        return max(matches, key=lambda match: match.score, default=None)

    def _places(self, tail: Sequence[int], last_text: int) -> list[tuple[int, int]]:
        """Places that have a next token, in the texts up to one, with the number of matching tokens."""
        texts = self._sources.texts
        places, lengths = texts.search(tail[-LONGEST_TAIL:])
        return [
            (place, length)
            for place, length in zip(places.tolist(), lengths.tolist(), strict=True)
            if texts.text_of(place) <= last_text and place < texts.end_of(place)
        ]

    def _score(self, place: int, length: int, course: Course) -> float:
        number = self._sources.texts.text_of(place)
        score = EACH * min(length, TELLING) + EACH_MORE * max(0, length - TELLING)
        if number == course.guide:
            score += GUIDE
        elif number < self._sources.original:
            score += OTHER_MERGE
        old, anchor = self._sources.old_place(place), self._sources.old_place(course.anchor)
        if old is None or anchor is None:
            return score + (UPDATE if number == self._sources.update else OUTPUT)
        return score - PER_DOUBLING * abs(old - anchor).bit_length() - (BACKWARD if old < anchor else 0.0)

    def _same_line(self, matches: Sequence[Match], begun: list[int], expected: int) -> Match | None:
        """The line that was expected, as it is indented now: it stands so in another source, or will be shifted."""
        here = next((match for match in matches if match.place == expected), None)
        wanted = self._sources.line_data(expected)
        if here is None or not wanted:
            return None
        same = [match for match in matches if self._sources.line_data(match.place) == wanted]
        exact = [match for match in same if self._sources.texts.tokens(match.place, match.place + len(begun)) == begun]
        if exact:
            return max(exact, key=lambda match: match.score)
        best = max(matches, key=lambda match: match.score)
        return here if best in same else None
