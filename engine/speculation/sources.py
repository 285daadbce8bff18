"""The texts that a draft copies from, and a suffix index over them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel

from engine.speculation.token_lines import TokenLines, find_block_ends, get_indent
from engine.types import count_common_prefix

NO_TOKEN = -1
"""Stands before, between and after the texts; no token equals it, so that no match crosses it."""

Places = NDArray[np.int64]


class SuffixIndex:
    """Token sequences laid end to end; a place is the index of the next token to copy, counted over all of them.

    Nothing is built beforehand: a search is a few passes of numpy over the tokens, 60 us over 20,000, and is only
    needed where the model rejects a draft. The last sequence grows with the output.
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
        """The place after all known tokens of the output."""
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
        """Return the tokens at places [start, stop)."""
        found: list[int] = self._ids[places].tolist()
        return found

    def token(self, place: int) -> int:
        """Return the token at a place, NO_TOKEN at a text's end."""
        return int(self._ids[place])

    def search(self, tail: Sequence[int], longest: int) -> tuple[Places, Places]:
        """Return all places after the last token of `tail`, ascending, and how many of its last tokens are before each.

        Lengths are in [1, min(len(tail), longest)]. The output's own end, after which nothing is known, is no place.
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

    A place is the index of a token, counted over all of them; each text [start, end) is followed by a place that holds
    NO_TOKEN. The tail of the output is searched without indentation, so that a block at another depth is found.
    """

    def __init__(self, sources: Sequence[Sequence[int]], lines: TokenLines) -> None:
        self.lines = lines
        arrays = [np.asarray(source, dtype=np.int64) for source in sources]
        self._raw = SuffixIndex(arrays)
        self.starts = self._raw.starts
        self.ends = [start + len(array) for start, array in zip(self.starts, arrays, strict=False)]
        bare = [lines.strip_indents(array, True)[:2] for array in arrays]
        self._bare = SuffixIndex([numbers for numbers, _ in bare])
        behind = np.zeros(self._bare.end + 1, dtype=np.int64)  # by bare place: the place after the token before it
        for start, bare_start, (_, kept) in zip(self.starts, self._bare.starts, bare, strict=False):
            behind[bare_start + 1 : bare_start + 1 + len(kept)] = kept + start + 1
        self._behind = np.zeros(2 * len(behind), dtype=np.int64)
        self._behind[: len(behind)] = behind
        self._behind_end = len(behind)
        self._at_line_start = True
        self.output: list[int] = []

    def grow(self, token_ids: Sequence[int]) -> None:
        """Append to the output."""
        start = self._raw.end
        array = np.asarray(token_ids, dtype=np.int64)
        numbers, kept, self._at_line_start = self.lines.strip_indents(array, self._at_line_start)
        self._raw.grow(token_ids)
        self._bare.grow(numbers.tolist())
        end = self._behind_end + len(kept)
        if end > len(self._behind):
            self._behind = np.concatenate([self._behind, np.zeros(end, dtype=np.int64)])
        self._behind[self._behind_end : end] = kept + start + 1
        self._behind_end = end
        self.output += token_ids

    def text_of(self, place: int) -> int:
        """Return the number of the text that a place belongs to; the output's is the last."""
        return bisect_right(self.starts, place) - 1

    def locate(self, places: Places) -> tuple[Places, Places]:
        """Return `text_of` and `end_of` of each place."""
        numbers = np.searchsorted(self.starts, places, side="right") - 1
        return numbers, np.array([*self.ends, self._raw.end])[numbers]

    def end_of(self, place: int) -> int:
        """Return the place after the last token of the text that a place belongs to."""
        number = self.text_of(place)
        return self.ends[number] if number < len(self.ends) else self._raw.end

    def token(self, place: int) -> int:
        """Return the token at a place; NO_TOKEN after a text's last one."""
        return self._raw.token(place)

    def tokens(self, start: int, end: int) -> list[int]:
        """Return the tokens at [start, end)."""
        return self._raw[start:end]

    def search(self, tail: Sequence[int]) -> tuple[Places, Places]:
        """Return all places after the last token of `tail`, and how many of its tokens are before each.

        Indentation is ignored and not counted; a tail of indentation only is nowhere.
        """
        numbers, _, _ = self.lines.strip_indents(np.asarray(tail, dtype=np.int64), False)
        places, lengths = self._bare.search(numbers.tolist(), len(tail))
        return self._behind[places], lengths

    def line_start(self, place: int) -> int:
        """Return where the line of a place begins; the place itself if lines are unknown."""
        if not self.lines.has_lines:
            return place
        first = self.starts[self.text_of(place)]
        while place > first and not self.lines.describe(self.token(place - 1)).ends_line:
            place -= 1
        return place

    def line_end(self, place: int) -> int:
        """Return where the line of a place ends; the text's end if lines are unknown."""
        if not self.lines.has_lines:
            return self.end_of(place)
        last = self.end_of(place)
        while place < last:
            place += 1
            if self.lines.describe(self.token(place - 1)).ends_line:
                break
        return place


MAX_MATRIX_BITS = 400_000_000
"""rapidfuzz keeps a bit for each pair of tokens between the common ends: 50 MB at most."""

MIN_COMMON = 4
"""Hunks with fewer common tokens between them are joined: single brackets and line ends are common by chance."""

NEAR = 64
"""Hunks with fewer common tokens between them are taken or left together."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """Places [start, end) of a merge replace [old_start, old_end) of the original."""

    start: int
    end: int
    old_start: int
    old_end: int


class Hunks:
    """The hunks of a merge, whose first token is at place `start`, against the original, at `old_start`."""

    def __init__(self, merge: Sequence[int], original: Sequence[int], start: int, old_start: int) -> None:
        self.hunks = [
            Hunk(start + one.start, start + one.end, old_start + one.old_start, old_start + one.old_end)
            for one in _find_hunks(merge, original)
        ]
        self._first = Hunk(start, start, old_start, old_start)
        self._starts = [hunk.start for hunk in self.hunks]
        columns = [(each.start, each.end, each.old_start, each.old_end) for each in (self._first, *self.hunks)]
        self._columns = np.array(columns, dtype=np.int64).T
        self._old_starts = [hunk.old_start for hunk in self.hunks]
        self._regions = _join_hunks(self.hunks, NEAR)
        self._region_starts = [region.old_start for region in self._regions]

    def find_region(self, place: int) -> Hunk | None:
        """Return the group of hunks in whose part of the original a place is."""
        number = bisect_right(self._region_starts, place)
        region = self._regions[number - 1] if number else self._first
        return region if region.old_start <= place < region.old_end else None

    def find_old_place(self, place: int) -> int:
        """Return the place in the original; within a hunk, as far after its beginning, or its end."""
        hunk = self._find_before(place, self._starts)
        if place < hunk.end:
            return min(hunk.old_start + place - hunk.start, hunk.old_end)
        return hunk.old_end + place - hunk.end

    def find_old_places(self, places: Places) -> Places:
        """Return `find_old_place` of each place."""
        starts, ends, old_starts, old_ends = self._columns[:, np.searchsorted(self._starts, places, side="right")]
        found: Places = np.where(
            places < ends, np.minimum(old_starts + places - starts, old_ends), old_ends + places - ends
        )
        return found

    def find_new_place(self, old_place: int) -> int:
        """Return the place in the merge of a place in the original; for one in a hunk, the place after the hunk."""
        hunk = self._find_before(old_place, self._old_starts)
        return hunk.end if old_place < hunk.old_end else hunk.end + old_place - hunk.old_end

    def touches(self, start: int, end: int) -> bool:
        """Return whether a hunk has tokens at places [start, end) of the merge."""
        return self._find_before(end - 1, self._starts).end > start

    def _find_before(self, place: int, starts: list[int]) -> Hunk:
        number = bisect_right(starts, place)
        return self.hunks[number - 1] if number else self._first


def _find_hunks(merge: Sequence[int], original: Sequence[int]) -> list[Hunk]:
    first = count_common_prefix(merge, original)
    room = min(len(merge), len(original)) - first
    last = count_common_prefix(merge[::-1][:room], original[::-1][:room])
    new, old = merge[first : len(merge) - last], original[first : len(original) - last]
    if len(new) * len(old) > MAX_MATRIX_BITS:
        return [Hunk(first, first + len(new), first, first + len(old))]
    hunks: list[Hunk] = []
    for op in Indel.opcodes(list(old), list(new)):
        if op.tag == "equal":
            continue
        hunks.append(Hunk(first + op.dest_start, first + op.dest_end, first + op.src_start, first + op.src_end))
    return _join_hunks(hunks, MIN_COMMON)


def _join_hunks(hunks: Sequence[Hunk], min_common: int) -> list[Hunk]:
    """Join hunks that have fewer common tokens between them."""
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

    `names[i]` is the name of text i of `texts` in statistics; `original` and `update` are the numbers of those texts.
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
        self._block_ends = [
            (first + start, first + end) for start, end in find_block_ends(update, original, self.lines)
        ]

    def find_block_end(self, place: int) -> int:
        """Return the place up to which the block of the update around a place is copied, without its last token."""
        number = bisect_right(self._block_ends, place, key=lambda ends: ends[1] - 1)
        return self._block_ends[min(number, len(self._block_ends) - 1)][0]

    def find_old_place(self, place: int) -> int | None:
        """Return the place in the original that a place of a whole file stands for; None for update and output."""
        number = self.texts.text_of(place)
        return self.hunks[number].find_old_place(place) if number <= self.original else None

    def find_old_places(self, places: Places, numbers: Places) -> Places:
        """Return `find_old_place` of each place, whose texts have these numbers; -1 for None."""
        found = np.full(len(places), -1, dtype=np.int64)
        for number, hunks in enumerate(self.hunks):
            first, end = np.searchsorted(numbers, (number, number + 1))  # places ascend, and so do their texts
            if first < end:
                found[first:end] = hunks.find_old_places(places[first:end])
        return found

    def read_line(self, place: int) -> bytes:
        """Return the line that begins at a place, without its indentation and its end."""
        return self.lines.text(self.texts.tokens(place, self.texts.line_end(place))).strip()

    def find_open_indent(self, tail: Sequence[int]) -> list[int]:
        """Return the blanks at the end of `tail` that begin a line."""
        start = len(tail)
        while start and self.lines.describe(tail[start - 1]).is_blank:
            start -= 1
        begins = start and self.lines.describe(tail[start - 1]).ends_line
        return list(tail[start:]) if begins else []

    def find_line_boundary(self, place: int) -> int:
        """Return the place itself if a line begins there, else the end of its line."""
        return place if self.texts.line_start(place) == place else self.texts.line_end(place)

    def compare_indents(self, place: int, tail: Sequence[int]) -> dict[bytes, bytes]:
        """Return the indentation of the last line before a place and, as its value, that of the last line of `tail`;
        nothing for blank lines.
        """
        if place == self.texts.starts[self.texts.text_of(place)]:
            return {}
        source = self.lines.text(self.texts.tokens(self.texts.line_start(place - 1), place))
        start = len(tail)
        while start and (start == len(tail) or not self.lines.describe(tail[start - 1]).ends_line):
            start -= 1
        written = self.lines.text(tail[start:])
        return {get_indent(source): get_indent(written)} if source.strip() and written.strip() else {}
