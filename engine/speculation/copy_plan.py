"""What will be written next, as far as can be told: copied from place to place of the sources."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from engine.speculation.indentation import Reindent, continued, reindented
from engine.speculation.ranking import Course, Ranking
from engine.speculation.sources import Sources

MAX_OUTPUT_COPY = 64
"""How much of the output is written again behind a place where it was met."""

TAIL_LEN = 96
"""How much of what was written before is kept to find the way: several lines."""


class Next(Enum):
    """What follows a stretch that has been copied, where it is no place."""

    END = auto()
    ONWARD = auto()


class Trust(Enum):
    """How a place was found."""

    FIRST = auto()
    """The beginning of the best whole file."""
    ALONG = auto()
    """The next hunk, or the other side of one."""
    MATCHED = auto()
    """Many of the output's last tokens stand before it."""
    WEAK = auto()
    """Few of them do."""
    GUESSED = auto()
    """None do: a token was taken to be substituted, or a block inserted."""
    FORESEEN = auto()
    """A pass over an earlier draft showed that the model will write this instead of what stands at the place."""


@dataclass(frozen=True, slots=True)
class Leg:
    """Planned tokens from index `start` on were copied in one piece; `trust` is how well its beginning is known."""

    start: int
    text: int
    trust: Trust
    course: Course
    reindent: Reindent


class Plan:
    """Tokens to come, lengthened when more are asked for; `places[i]` is where token i stands in the sources.

    before: the last tokens of the output when the plan began. It depends on nothing else that is written.
    """

    def __init__(self, sources: Sources, ranking: Ranking, course: Course, before: Sequence[int]) -> None:
        self._sources = sources
        self._ranking = ranking
        self._before = list(before)
        self._cursor: int | None = None
        self._behind_change: int | None = None
        self._held_back: int | None = None  # the last token of a block that was copied, if there was one
        self.course = course
        self.reindent = Reindent()
        self.token_ids: list[int] = []
        self.places: list[int] = []
        self.legs: list[Leg] = []
        self.turned: set[int] = set()

    @property
    def tail(self) -> list[int]:
        """The last tokens of the output as it will be when all that is planned by now is written."""
        return [*self._before, *self.token_ids[-TAIL_LEN:]][-TAIL_LEN:]

    def begin(self, place: int, trust: Trust, reindent: Reindent, behind_change: int | None) -> None:
        """Copy from a place on; `behind_change` is where a whole file may go on behind a block that is copied first."""
        self._behind_change = behind_change
        self.reindent = reindent
        begun, rest, end = self._sources.begun_indent(self.tail), list[int](), place
        if begun and self._sources.texts.line_start(place) == place:
            end = self._sources.texts.line_end(place)
            rest, seen = continued(self._sources.texts.tokens(place, end), begun, self._sources.lines)
            self.reindent = Reindent(reindent.pairs | seen)
        self._go_to(place, trust)
        self._append(rest, place, end)
        self._cursor = end

    def extend(self, num_tokens: int) -> None:
        """Make the plan at least so long, if the sources have more."""
        while len(self.token_ids) < num_tokens and self._cursor is not None:
            place = self._cursor
            end, following = self._stretch(place)
            self._copy(place, end)
            if following is Next.ONWARD:
                self._go_onward(end)
            elif following is Next.END:
                self._cursor = None
            else:
                assert isinstance(following, int)
                self._go_to(following, Trust.ALONG)

    def turn(self, at: int, token_id: int, course: Course) -> None:
        """Put another token for the planned one `at`, and nothing behind it; it stands at the same place.

        Places at which that was done are `turned`: where the token is inserted, they come a second time.
        """
        place = self.places[at]
        self.turned.add(place)
        self.course, self.reindent = course, self.reindent_at(at)
        del self.token_ids[at:], self.places[at:]
        self.legs = [leg for leg in self.legs if leg.start < at]
        self._go_to(place, Trust.FORESEEN)
        self._append([token_id], place, place + 1)
        self._cursor = self._behind_change = self._held_back = None

    def expected(self, at: int) -> int | None:
        """The place of planned token `at`, or where it would be: behind the last one."""
        if at < len(self.places):
            return self.places[at]
        return self._cursor if self._cursor is not None or not self.places else self.places[-1] + 1

    def course_at(self, at: int) -> Course:
        """Where copying had come to when it came to planned token `at`: what is planned behind that does not matter."""
        leg = self._leg(at)
        return self.course if leg is None else leg.course

    def reindent_at(self, at: int) -> Reindent:
        """With which indentation the planned token `at` was copied."""
        leg = self._leg(at)
        return Reindent() if leg is None else leg.reindent

    def _leg(self, at: int) -> Leg | None:
        number = bisect_right(self.legs, at, key=lambda leg: leg.start)
        return self.legs[number - 1] if number else None

    def _stretch(self, place: int) -> tuple[int, int | Next]:
        """Up to where a text is copied from a place, and where copying goes on."""
        texts, number = self._sources.texts, self._sources.texts.text_of(place)
        if number == self._sources.update:
            start = self._sources.block_end(place)
            self._held_back = start if place <= start else None
            return max(place, start), Next.ONWARD
        if number == self._sources.output:
            return min(place + MAX_OUTPUT_COPY, texts.end_of(place)), Next.END
        if number == self.course.guide or place >= texts.ends[number]:
            return texts.ends[number], Next.END
        guide = self._sources.hunks[self.course.guide]
        region = guide.region_at_old(place)
        return (place, guide.new_place(place)) if region is None else (region.old_end, region.end)

    def _go_to(self, place: int, trust: Trust) -> None:
        number = self._sources.texts.text_of(place)
        if number < self._sources.original:
            self.course = replace(self.course, guide=number)
        self._cursor = place
        self.legs.append(Leg(len(self.token_ids), number, trust, self.course, self.reindent))

    def _go_onward(self, end: int) -> None:
        """From the end of a block to the whole file; its last token is dropped where the file ends the line itself."""
        match = self._ranking.onward(self.tail, self.course)
        if match is None and self._held_back is not None:
            self._append(self._sources.texts.tokens(end, end + 1), end, end + 1)
            match = self._ranking.onward(self.tail, self.course)
        if match is not None:
            self.reindent = Reindent(self._sources.indents_before(match.place, self.tail))
            self._go_to(match.place, Trust.MATCHED if match.length >= 8 else Trust.WEAK)
        elif self._behind_change is not None:
            self.reindent = Reindent()
            self._go_to(self._behind_change, Trust.GUESSED)
        else:
            self._cursor = None

    def _copy(self, start: int, end: int) -> None:
        """Append the tokens at places [start, end), changed lines with the indentation that they get."""
        if self.reindent.is_identity:
            self._append(self._sources.texts.tokens(start, end), start, end)
            return
        texts, number = self._sources.texts, self._sources.texts.text_of(start)
        while start < end:
            line_end = min(texts.line_end(start), end)
            line = texts.tokens(start, line_end)
            is_new = number > self._sources.original or self._sources.hunks[number].touches(start, line_end)
            if texts.line_start(start) == start and (is_new or number == self._sources.original):
                line = reindented(line, self.reindent, self._sources.lines)
            self._append(line, start, line_end)
            start = line_end

    def _append(self, token_ids: Sequence[int], start: int, end: int) -> None:
        """Append tokens that stand for places [start, end); those in excess at the front belong to the first."""
        excess = max(0, len(token_ids) - (end - start))
        self.token_ids += token_ids
        self.places += [start] * excess
        self.places += range(end - (len(token_ids) - excess), end)
