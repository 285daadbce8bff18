"""The plan of what is copied next, and how it continues after a rejection."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from engine.speculation.sources import Hunk, Hunks, Sources
from engine.speculation.token_lines import Reindent, continued, reindented
from engine.types import DraftBranch

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
