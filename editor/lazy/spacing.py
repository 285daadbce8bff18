"""The blank lines between the pieces of a merged level: as in the file, else as in the snippet, else as is usual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from editor.lazy.units import Unit


@dataclass(frozen=True, slots=True)
class Piece:
    """One unit of the result. `f` and `s` are its indices among its siblings, None if it does not stand among them."""

    lines: Sequence[str]
    f: int | None
    s: int | None


@dataclass(frozen=True, slots=True)
class Spacing:
    """The units of one level of the file, which begins at line `start` of `lines`, and those of the snippet."""

    lines: Sequence[str]
    start: int
    in_file: Sequence[Unit]
    in_snippet: Sequence[Unit]

    def joined(self, pieces: Sequence[Piece]) -> list[str]:
        """Return the lines of all pieces with the blank lines above each."""
        merged: list[str] = []
        above: Piece | None = None
        for piece in pieces:
            merged += self._file_blanks(piece.f or 0) if above is None else self._blanks(above, piece)
            merged += piece.lines
            above = piece
        return merged

    def _blanks(self, above: Piece, piece: Piece) -> Sequence[str]:
        have = self._file_blanks(piece.f) if piece.f is not None else ()
        if piece.s is not None and above.s is not None and piece.s == above.s + 1:
            shown = self._snippet_blanks(piece.s)
            is_same = _are_neighbours(above.f, piece.f) and shown == len(have)
            return have if is_same else [""] * shown
        if (piece.f is not None and above.f is not None) or self._unit(piece).continues or self._unit(above).continues:
            return have
        usual = self._usual_blanks(above, piece)
        return have if len(have) >= usual else [""] * usual

    def _unit(self, piece: Piece) -> Unit:
        if piece.f is not None:
            return self.in_file[piece.f]
        assert piece.s is not None
        return self.in_snippet[piece.s]

    def _file_blanks(self, f: int) -> Sequence[str]:
        if f >= len(self.in_file):
            return []
        above = self.in_file[f - 1].end if f else self.start
        return self.lines[above : self.in_file[f].start]

    def _snippet_blanks(self, s: int) -> int:
        return self.in_snippet[s].start - self.in_snippet[s - 1].end

    def _usual_blanks(self, above: Piece, piece: Piece) -> int:
        """Return how many blank lines part such units in the file, or else in the snippet."""
        tight = len(piece.lines) == len(above.lines) == 1
        for units in (self.in_file, self.in_snippet):
            counts = Counter(
                low.start - high.end
                for high, low in pairwise(units)
                if not (low.continues or low.is_marker or high.is_marker)
                and tight == (low.end == low.start + 1 and high.end == high.start + 1)
            )
            if counts:
                return counts.most_common(1)[0][0]
        return 0 if tight else 1


def _are_neighbours(above: int | None, below: int | None) -> bool:
    return above is not None and below is not None and below == above + 1
