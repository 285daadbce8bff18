"""What a merge draft copies from, and how its sources stand to each other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from engine.speculation.hunks import Hunks
from engine.speculation.indentation import indent_of
from engine.speculation.texts import Texts
from engine.speculation.token_lines import TokenLines
from engine.speculation.update_blocks import block_ends


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
