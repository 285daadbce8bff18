"""The texts that a draft copies from, and a suffix index over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel

from engine.speculation.token_lines import TokenLines, block_ends, indent_of

NO_TOKEN = -1
"""Stands before, between and behind the texts; no token is equal to it, so that no match runs across it."""

Places = NDArray[np.int64]


class SuffixIndex:
    """Token sequences laid end to end; a place is where the next token to copy stands, counted through all of them.

    Nothing is built beforehand: a search is a few passes of numpy over the tokens, 60 us over 20,000, and is needed
    only where the model departs from a draft. The last sequence grows with the output.
    """

    def __init__(self, sources: Sequence[Sequence[int] | Places], room: int = 1024) -> None:
        self.starts: list[int] = []
        parts: list[Sequence[int] | Places] = [[NO_TOKEN]]
        end = 1
        for source in [*sources, []]:  # the last one is the output
            self.starts.append(end)
            parts += [source, [NO_TOKEN]]
            end += len(source) + 1
        self._ids = np.full(end + room, NO_TOKEN, dtype=np.int64)
        self._ids[:end] = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        self._end = end - 1

    @property
    def end(self) -> int:
        """The place behind all that is known of the output."""
        return self._end

    def grow(self, token_ids: Sequence[int]) -> None:
        """Append to the output."""
        end = self._end + len(token_ids)
        if end >= len(self._ids):
            larger = np.full(2 * end, NO_TOKEN, dtype=np.int64)
            larger[: self._end] = self._ids[: self._end]
            self._ids = larger
        self._ids[self._end : end] = token_ids
        self._end = end

    def __getitem__(self, places: slice) -> list[int]:
        """The tokens at places [start, stop)."""
        found: list[int] = self._ids[places].tolist()
        return found

    def token(self, place: int) -> int:
        """The token at a place, NO_TOKEN at a text's end."""
        return int(self._ids[place])

    def search(self, tail: Sequence[int], longest: int) -> tuple[Places, Places]:
        """All places behind the last token of `tail`, ascending, and how many of its last tokens stand before each.

        Lengths are in [1, min(len(tail), longest)]. The output's own end, behind which nothing is known, is no place.
        """
        if not tail:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        places = np.flatnonzero(self._ids[: self._end - 1] == tail[-1]) + 1
        lengths = np.ones(len(places), dtype=np.int64)
        alive = np.arange(len(places))
        for length in range(2, min(len(tail), longest) + 1):
            # the NO_TOKEN at place 0 ends every match before a place could be negative
            alive = alive[self._ids[places[alive] - length] == tail[-length]]
            if not len(alive):
                break
            lengths[alive] = length
        return places, lengths


class Texts:
    """Several token sequences, the last of which is the output and grows.

    A place is where a token stands, counted through all of them; each text [start, end) is followed by a place that
    holds NO_TOKEN. The tail of the output is searched for without indentation, so that a block is found again that
    stands elsewhere at another depth.
    """

    def __init__(self, sources: Sequence[Sequence[int]], lines: TokenLines) -> None:
        self.lines = lines
        arrays = [np.asarray(source, dtype=np.int64) for source in sources]
        self._raw = SuffixIndex(arrays)
        self.starts = self._raw.starts
        self.ends = [start + len(array) for start, array in zip(self.starts, arrays, strict=False)]
        bare = [lines.unindented(array, True)[:2] for array in arrays]
        self._bare = SuffixIndex([numbers for numbers, _ in bare])
        behind = np.zeros(self._bare.end + 1, dtype=np.int64)  # by bare place: the place behind the token before it
        for start, bare_start, (_, kept) in zip(self.starts, self._bare.starts, bare, strict=False):
            behind[bare_start + 1 : bare_start + 1 + len(kept)] = kept + start + 1
        self._behind = behind.tolist()
        self._at_line_start = True
        self.output: list[int] = []

    def grow(self, token_ids: Sequence[int]) -> None:
        """Append to the output."""
        start = self._raw.end
        array = np.asarray(token_ids, dtype=np.int64)
        numbers, kept, self._at_line_start = self.lines.unindented(array, self._at_line_start)
        self._raw.grow(token_ids)
        self._bare.grow(numbers.tolist())
        self._behind += (kept + start + 1).tolist()
        self.output += token_ids

    def text_of(self, place: int) -> int:
        """The number of the text that a place belongs to; the output's is the last."""
        return bisect_right(self.starts, place) - 1

    def end_of(self, place: int) -> int:
        """The place behind the last token of the text that a place belongs to."""
        number = self.text_of(place)
        return self.ends[number] if number < len(self.ends) else self._raw.end

    def token(self, place: int) -> int:
        """The token at a place; NO_TOKEN behind a text's last."""
        return self._raw.token(place)

    def tokens(self, start: int, end: int) -> list[int]:
        """The tokens at [start, end)."""
        return self._raw[start:end]

    def search(self, tail: Sequence[int]) -> tuple[Places, Places]:
        """All places behind the last token of `tail`, and how many of its tokens stand before each.

        Indentation is not looked at and not counted; a tail of nothing else stands nowhere.
        """
        numbers, _, _ = self.lines.unindented(np.asarray(tail, dtype=np.int64), False)
        places, lengths = self._bare.search(numbers.tolist(), len(tail))
        return np.array([self._behind[place] for place in places.tolist()], dtype=np.int64), lengths

    def line_start(self, place: int) -> int:
        """Where the line begins that a place is in, or begins; the place itself where nothing is known of lines."""
        if not self.lines.known:
            return place
        first = self.starts[self.text_of(place)]
        while place > first and not self.lines.kind(self.token(place - 1)).ends_line:
            place -= 1
        return place

    def line_end(self, place: int) -> int:
        """Where the line ends that a place is in, or begins; the text's end where nothing is known of lines."""
        if not self.lines.known:
            return self.end_of(place)
        last = self.end_of(place)
        while place < last:
            place += 1
            if self.lines.kind(self.token(place - 1)).ends_line:
                break
        return place


MAX_MATRIX_BITS = 400_000_000
"""rapidfuzz keeps a bit for each pair of tokens between the common ends: 50 MB at most."""

MIN_COMMON = 4
"""Hunks with fewer common tokens between them are one: single brackets and line ends are common by chance."""

NEAR = 64
"""Hunks with fewer common tokens between them are taken or left together."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Places [start, end) of a merge stand where the original has [old_start, old_end)."""

    start: int
    end: int
    old_start: int
    old_end: int


class Hunks:
    """The hunks of a merge, whose first token is at place `start`, against the original, at `old_start`."""

    def __init__(self, merge: Sequence[int], original: Sequence[int], start: int, old_start: int) -> None:
        self.hunks = [
            Hunk(start + one.start, start + one.end, old_start + one.old_start, old_start + one.old_end)
            for one in _found(merge, original)
        ]
        self._first = Hunk(start, start, old_start, old_start)
        self._starts = [hunk.start for hunk in self.hunks]
        self._old_starts = [hunk.old_start for hunk in self.hunks]
        self._regions = _joined(self.hunks, NEAR)
        self._region_starts = [region.old_start for region in self._regions]

    def at(self, place: int) -> Hunk | None:
        """The hunk that a place of the merge is in or begins."""
        hunk = self._before(place, self._starts)
        return hunk if hunk.start <= place < max(hunk.end, hunk.start + 1) and hunk is not self._first else None

    def region_at_old(self, place: int) -> Hunk | None:
        """The group of hunks in whose part of the original a place is."""
        number = bisect_right(self._region_starts, place)
        region = self._regions[number - 1] if number else self._first
        return region if region.old_start <= place < region.old_end else None

    def old_place(self, place: int) -> int:
        """The place in the original; within a hunk, as far behind its beginning, or its end."""
        hunk = self._before(place, self._starts)
        if place < hunk.end:
            return min(hunk.old_start + place - hunk.start, hunk.old_end)
        return hunk.old_end + place - hunk.end

    def new_place(self, old_place: int) -> int:
        """The place in the merge of a place in the original that is in no hunk; in one, the place behind the hunk."""
        hunk = self._before(old_place, self._old_starts)
        return hunk.end if old_place < hunk.old_end else hunk.end + old_place - hunk.old_end

    def touches(self, start: int, end: int) -> bool:
        """Whether a hunk has tokens at places [start, end) of the merge."""
        return self._before(end - 1, self._starts).end > start

    def _before(self, place: int, starts: list[int]) -> Hunk:
        number = bisect_right(starts, place)
        return self.hunks[number - 1] if number else self._first


def _found(merge: Sequence[int], original: Sequence[int]) -> list[Hunk]:
    first = _common_len(merge, original)
    room = min(len(merge), len(original)) - first
    last = _common_len(merge[::-1][:room], original[::-1][:room])
    new, old = merge[first : len(merge) - last], original[first : len(original) - last]
    if len(new) * len(old) > MAX_MATRIX_BITS:
        return [Hunk(first, first + len(new), first, first + len(old))]
    hunks: list[Hunk] = []
    for op in Indel.opcodes(list(old), list(new)):
        if op.tag == "equal":
            continue
        hunks.append(Hunk(first + op.dest_start, first + op.dest_end, first + op.src_start, first + op.src_end))
    return _joined(hunks, MIN_COMMON)


def _common_len(one: Sequence[int], other: Sequence[int]) -> int:
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.asarray(one[:size]) != np.asarray(other[:size]))
    return int(differ[0]) if len(differ) else size


def _joined(hunks: Sequence[Hunk], min_common: int) -> list[Hunk]:
    """The hunks, those with fewer common tokens between them made one."""
    joined: list[Hunk] = []
    for hunk in hunks:
        if joined and hunk.start - joined[-1].end < min_common:
            above = joined.pop()
            joined.append(Hunk(above.start, hunk.end, above.old_start, hunk.old_end))
        else:
            joined.append(hunk)
    return joined


class Sources:
    """The whole files first, best first (merges, a prediction, the original), then the update, then the output.

    `names[i]` is what statistics call text i of `texts`; `original` and `update` are the numbers of those texts.
    """

    def __init__(
        self,
        merges: Sequence[Sequence[int]],
        prediction: Sequence[int] | None,
        original: Sequence[int],
        update: Sequence[int],
        token_bytes: Sequence[bytes] | None,
    ) -> None:
        predictions = [prediction] if prediction else []
        wholes = [*merges, *predictions, original]
        self.names = (
            *["merge"] * len(merges),
            *["prediction"] * len(predictions),
            *("original", "update", "output"),
        )
        self.original, self.update, self.output = (self.names.index(name) for name in ("original", "update", "output"))
        self.lines = TokenLines(token_bytes)
        self.texts = Texts([*wholes, update], self.lines)
        starts = self.texts.starts
        self.hunks = [
            Hunks(whole, original, start, starts[self.original]) for whole, start in zip(wholes, starts, strict=False)
        ]
        first = starts[self.update]
        self._block_ends = [(first + start, first + end) for start, end in block_ends(update, original, self.lines)]

    def block_end(self, place: int) -> int:
        """Up to where the block of the update that a place is in is copied, its last token left out."""
        number = bisect_right(self._block_ends, place, key=lambda ends: ends[1] - 1)
        return self._block_ends[min(number, len(self._block_ends) - 1)][0]

    def old_place(self, place: int) -> int | None:
        """The place in the original that a place of a whole file stands for; None for update and output."""
        number = self.texts.text_of(place)
        return self.hunks[number].old_place(place) if number <= self.original else None

    def line_data(self, place: int) -> bytes:
        """The line that begins at a place, without its indentation and its end."""
        return self.lines.text(self.texts.tokens(place, self.texts.line_end(place))).strip()

    def begun_indent(self, tail: Sequence[int]) -> list[int]:
        """The blanks at the end of `tail` that begin a line."""
        start = len(tail)
        while start and self.lines.kind(tail[start - 1]).is_blank:
            start -= 1
        begins = start and self.lines.kind(tail[start - 1]).ends_line
        return list(tail[start:]) if begins else []

    def line_boundary(self, place: int) -> int:
        """The place itself if a line begins there, else where its line ends."""
        return place if self.texts.line_start(place) == place else self.texts.line_end(place)

    def indents_before(self, place: int, tail: Sequence[int]) -> dict[bytes, bytes]:
        """How the last line before a place is indented -> how the last one of `tail` is; nothing for blank lines."""
        if place == self.texts.starts[self.texts.text_of(place)]:
            return {}
        source = self.lines.text(self.texts.tokens(self.texts.line_start(place - 1), place))
        start = len(tail)
        while start and (start == len(tail) or not self.lines.kind(tail[start - 1]).ends_line):
            start -= 1
        written = self.lines.text(tail[start:])
        return {indent_of(source): indent_of(written)} if source.strip() and written.strip() else {}
