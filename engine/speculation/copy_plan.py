"""The plan of what is copied next, and where copying continues after a rejection."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from engine.speculation.sources import Places, Sources
from engine.speculation.token_lines import Reindent, complete_line, reindent_line

LONGEST_TAIL = 32
"""How many of the output's last tokens are searched for."""

TELLING = 8
"""This many matching tokens give most of what a match can tell; code also repeats longer sequences."""

EACH, EACH_MORE = 1.6, 0.1
"""The score of each matching token, up to TELLING and after that."""

GUIDE, OTHER_MERGE, UPDATE, OUTPUT = 0.5, -2.0, 0.5, -3.0
"""Added to the score for the whole file that is followed, for another merge, for the update, and for the output."""

PER_DOUBLING, BACKWARD = 0.25, 1.5
"""Subtracted from the score for each doubling of the distance in the original, and for going back."""

ALIGNED = 5.0
"""Added to the score if another whole file is at the very place where it differs from the one that is followed."""

SUBSTITUTED = 1.5
"""The score of assuming that one token is substituted: about that of a single matching token nearby."""

FEWEST_ELSEWHERE, FEWEST_CONTINUED = 2, 3
"""The fewest matching tokens that are trusted, outside the update, and after a block of the update."""


@dataclass(frozen=True, slots=True)
class CopyCursor:
    """The state of copying: the whole file that is followed, and the last place in one that was expected."""

    guide: int
    anchor: int


@dataclass(frozen=True, slots=True)
class FoundPlaces:
    """Places after the output's last `lengths` tokens, ascending, int64 each.

    texts: the numbers of their texts. old_places: the places in the original that they stand for, -1 for none.
    """

    places: Places
    lengths: Places
    texts: Places
    old_places: Places


@dataclass(frozen=True, slots=True)
class TailMatch:
    """A place after the output's last `length` tokens."""

    place: int
    length: int
    score: float


class Resync:
    """Ranks places by the tokens before them: the longer they match the output's tail, and the nearer, the better.

    Weights were set on half of the edits of `benchmarks.forwards` (a third held out by name, six styles of snippets).
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def find_resync(self, tail: Sequence[int], expected: int | None, cursor: CopyCursor) -> TailMatch | None:
        """Return the most likely place after `tail`, whose last token differs from the one at place `expected`.

        None: the token is in no source; the best guess is then what follows the expected token, if anything.
        """
        sources, texts = self._sources, self._sources.texts
        open_indent = sources.find_open_indent(tail)
        aligned = None if expected is None else sources.find_old_place(expected)
        found = self._find_places(tail, sources.output, cursor)
        is_alternative = np.zeros(len(found.places), dtype=np.bool_)
        if aligned is not None:
            is_alternative = (found.old_places == aligned + 1) & (found.texts != cursor.guide)
        lengths = found.lengths
        if open_indent:
            exact = [texts.tokens(place, place + len(open_indent)) == open_indent for place in found.places.tolist()]
            lengths = lengths + np.array(exact, dtype=np.int64)
        scores = self._score(found, lengths, cursor) + is_alternative * ALIGNED
        kept = np.flatnonzero(is_alternative | (lengths >= FEWEST_ELSEWHERE) | (found.texts == sources.update))
        best = _get_best(found.places[kept], lengths[kept], scores[kept])
        if open_indent and expected is not None:
            columns = (found.places[kept].tolist(), lengths[kept].tolist(), scores[kept].tolist())
            matches = [TailMatch(*each) for each in zip(*columns, strict=True)]
            best = self._find_same_line(matches, open_indent, texts.line_start(expected)) or best
        within = expected is not None and expected < texts.end_of(expected)
        return None if best is None or (within and best.score <= SUBSTITUTED) else best

    def find_continuation(self, tail: Sequence[int], cursor: CopyCursor) -> TailMatch | None:
        """Return where a whole file continues after `tail`, the end of a copied block of the update or of
        the output.
        """
        found = self._find_places(tail, self._sources.original, cursor)
        kept = np.flatnonzero(found.lengths >= FEWEST_CONTINUED)
        scores = self._score(found, found.lengths, cursor)
        return _get_best(found.places[kept], found.lengths[kept], scores[kept])

    def _find_places(self, tail: Sequence[int], last_text: int, cursor: CopyCursor) -> FoundPlaces:
        """Return places with a next token, in the texts up to `last_text`."""
        places, lengths = self._sources.texts.search(tail[-LONGEST_TAIL:])
        numbers, ends = self._sources.texts.locate(places)
        kept = np.flatnonzero((numbers <= last_text) & (places < ends))
        places, lengths, numbers = places[kept], lengths[kept], numbers[kept]
        return FoundPlaces(places, lengths, numbers, self._sources.find_old_places(places, numbers))

    def _score(self, found: FoundPlaces, lengths: Places, cursor: CopyCursor) -> NDArray[np.float64]:
        """Return the score of each place."""
        sources, numbers, old_places = self._sources, found.texts, found.old_places
        scores = EACH * np.minimum(lengths, TELLING) + EACH_MORE * np.maximum(0, lengths - TELLING)
        scores[numbers == cursor.guide] += GUIDE
        scores[(numbers != cursor.guide) & (numbers < sources.original)] += OTHER_MERGE
        anchor = sources.find_old_place(cursor.anchor)
        is_old = old_places >= 0 if anchor is not None else np.zeros(len(numbers), dtype=np.bool_)
        scores[~is_old & (numbers == sources.update)] += UPDATE
        scores[~is_old & (numbers != sources.update)] += OUTPUT
        if anchor is not None:
            distances = old_places[is_old] - anchor
            num_doublings = np.frexp(np.abs(distances).astype(np.float64))[1]  # the bit length
            scores[is_old] = scores[is_old] - PER_DOUBLING * num_doublings - BACKWARD * (distances < 0)
        return scores

    def _find_same_line(self, matches: Sequence[TailMatch], open_indent: list[int], expected: int) -> TailMatch | None:
        """Return the expected line at its present indentation: it is so in another source, or will be shifted."""
        here = next((match for match in matches if match.place == expected), None)
        wanted = self._sources.read_line(expected)
        if here is None or not wanted:
            return None
        same = [match for match in matches if self._sources.read_line(match.place) == wanted]
        exact = [
            match
            for match in same
            if self._sources.texts.tokens(match.place, match.place + len(open_indent)) == open_indent
        ]
        if exact:
            return max(exact, key=lambda match: match.score)
        best = max(matches, key=lambda match: match.score)
        return here if best in same else None


def _get_best(places: Places, lengths: Places, scores: NDArray[np.float64]) -> TailMatch | None:
    """Return the match with the highest score, the first of equal ones."""
    if not len(places):
        return None
    at = int(scores.argmax())
    return TailMatch(int(places[at]), int(lengths[at]), float(scores[at]))


MAX_OUTPUT_COPY = 64
"""How many tokens of the output are copied again from a place where its tail was found."""

TAIL_LEN = 96
"""How many written tokens are kept for the search: several lines."""


class After(Enum):
    """What follows a stretch that has been copied, if it is no place."""

    END = auto()
    CONTINUATION = auto()


class MatchQuality(Enum):
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


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Planned tokens from index `start` on, copied in one piece; `quality` is how well its beginning is known."""

    start: int
    text: int
    quality: MatchQuality
    cursor: CopyCursor
    reindent: Reindent


class CopyPlan:
    """The tokens to come, extended when more are needed; `places[i]` is where token i is in the sources.

    before: the last tokens of the output when the plan began. The plan depends on nothing else that is written.
    """

    def __init__(self, sources: Sources, resync: Resync, cursor: CopyCursor, before: Sequence[int]) -> None:
        self._sources = sources
        self._resync = resync
        self._before = list(before)
        self._output_end = sources.texts.starts[sources.output] + len(sources.texts.output)
        self._next_place: int | None = None
        self._after_change: int | None = None
        self._held_back: int | None = None  # the last token of a block that was copied, if there was one
        self.cursor = cursor
        self.reindent = Reindent()
        self.token_ids: list[int] = []
        self.places: list[int] = []
        self.runs: list[CopyRun] = []

    @property
    def tail(self) -> list[int]:
        """The last tokens of the output once everything planned so far is written."""
        return [*self._before, *self.token_ids[-TAIL_LEN:]][-TAIL_LEN:]

    def start_copy(self, place: int, quality: MatchQuality, reindent: Reindent, after_change: int | None) -> None:
        """Copy from a place on; `after_change` is where a whole file may continue after a block that is
        copied first.
        """
        self._after_change = after_change
        self.reindent = reindent
        open_indent, rest, end = self._sources.find_open_indent(self.tail), list[int](), place
        if open_indent and self._sources.texts.line_start(place) == place:
            end = self._sources.texts.line_end(place)
            rest, seen = complete_line(self._sources.texts.tokens(place, end), open_indent, self._sources.lines)
            self.reindent = Reindent(reindent.pairs | seen)
        self._go_to(place, quality)
        self._append(rest, place, end)
        self._next_place = end

    def extend(self, num_tokens: int) -> None:
        """Extend the plan to `num_tokens`, if the sources have more."""
        while len(self.token_ids) < num_tokens and self._next_place is not None:
            place = self._next_place
            end, following = self._find_stretch(place)
            needed = place + num_tokens - len(self.token_ids)
            if needed < end and self.reindent.is_identity and self._sources.find_old_place(place) is not None:
                self._copy(place, needed)  # not the rest of a long file, which may never be asked for
                self._next_place = needed
                continue
            self._copy(place, end)
            if following is After.CONTINUATION:
                self._continue_after_block(end)
            elif following is After.END:
                self._next_place = None
            else:
                assert isinstance(following, int)
                self._go_to(following, MatchQuality.ALONG)

    def find_expected(self, at: int) -> int | None:
        """Return the place of planned token `at`, or where it would be, after the last one."""
        if at < len(self.places):
            return self.places[at]
        return self._next_place if self._next_place is not None or not self.places else self.places[-1] + 1

    def get_cursor(self, at: int) -> CopyCursor:
        """Return the cursor at planned token `at`; later planned tokens do not matter."""
        run = self._get_run(at)
        return self.cursor if run is None else run.cursor

    def get_reindent(self, at: int) -> Reindent:
        """Return the change of indentation with which planned token `at` was copied."""
        run = self._get_run(at)
        return Reindent() if run is None else run.reindent

    def _get_run(self, at: int) -> CopyRun | None:
        number = bisect_right(self.runs, at, key=lambda run: run.start)
        return self.runs[number - 1] if number else None

    def _find_stretch(self, place: int) -> tuple[int, int | After]:
        """Return the place up to which a text is copied from a place, and where copying continues."""
        texts, number = self._sources.texts, self._sources.texts.text_of(place)
        if number == self._sources.update:
            start = self._sources.find_block_end(place)
            self._held_back = start if place <= start else None
            return max(place, start), After.CONTINUATION
        if number == self._sources.output:
            return min(place + MAX_OUTPUT_COPY, self._output_end), After.END
        if number == self.cursor.guide or place >= texts.ends[number]:
            return texts.ends[number], After.END
        guide = self._sources.hunks[self.cursor.guide]
        region = guide.find_region(place)
        return (place, guide.find_new_place(place)) if region is None else (region.old_end, region.end)

    def _go_to(self, place: int, quality: MatchQuality) -> None:
        number = self._sources.texts.text_of(place)
        if number < self._sources.original:
            self.cursor = replace(self.cursor, guide=number)
        self._next_place = place
        self.runs.append(CopyRun(len(self.token_ids), number, quality, self.cursor, self.reindent))

    def _continue_after_block(self, end: int) -> None:
        """Continue in the whole file after a block; the block's last token is dropped if the file ends
        the line itself.
        """
        match = self._resync.find_continuation(self.tail, self.cursor)
        if match is None and self._held_back is not None:
            self._append(self._sources.texts.tokens(end, end + 1), end, end + 1)
            match = self._resync.find_continuation(self.tail, self.cursor)
        if match is not None:
            self.reindent = Reindent(self._sources.compare_indents(match.place, self.tail))
            self._go_to(match.place, MatchQuality.MATCHED if match.length >= 8 else MatchQuality.WEAK)
        elif self._after_change is not None:
            self.reindent = Reindent()
            self._go_to(self._after_change, MatchQuality.GUESSED)
        else:
            self._next_place = None

    def _copy(self, start: int, end: int) -> None:
        """Append the tokens at places [start, end), changed lines with their new indentation."""
        if self.reindent.is_identity:
            self._append(self._sources.texts.tokens(start, end), start, end)
            return
        texts, number = self._sources.texts, self._sources.texts.text_of(start)
        while start < end:
            line_end = min(texts.line_end(start), end)
            line = texts.tokens(start, line_end)
            is_new = number > self._sources.original or self._sources.hunks[number].touches(start, line_end)
            if texts.line_start(start) == start and (is_new or number == self._sources.original):
                line = reindent_line(line, self.reindent, self._sources.lines)
            self._append(line, start, line_end)
            start = line_end

    def _append(self, token_ids: Sequence[int], start: int, end: int) -> None:
        """Append tokens for the places [start, end); excess tokens at the front belong to the first place."""
        excess = max(0, len(token_ids) - (end - start))
        self.token_ids += token_ids
        self.places += [start] * excess
        self.places += range(end - (len(token_ids) - excess), end)
