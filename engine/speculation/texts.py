"""The sources of a draft laid end to end: places in them, their lines, and where the output's tail stands in them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from engine.speculation.suffix_index import Places, SuffixIndex
from engine.speculation.token_lines import TokenLines


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
