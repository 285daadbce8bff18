"""A replacement of an edit with the places of the original where it may be made."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from editor.attribution.snippet import get_trailing_space, is_moved_alike, measure_indent
from editor.diff import line_opcodes
from editor.match.ladder import fold_line
from editor.types import Replacement

MAX_OPTIONS = 50
"""Places, or changes, that are tried at one point of a search."""


@dataclass(frozen=True, slots=True)
class SpanEdit:
    """Lines [start, end) of the original, and the lines that replace them.

    Each line is a pair: the file's own line (None for a new one) and the line as sent (None where `...` leaves it out).
    `depths` are the indentations that the old lines have in the edit and in the file, in columns.
    """

    start: int
    end: int
    lines: tuple[tuple[str | None, str | None], ...]
    depths: frozenset[tuple[int, int]] = frozenset({(0, 0)})

    def find_end(self, new: Sequence[str], at: int) -> int | None:
        """Return the line of the result after the new lines, None if the result has something else there."""
        end = at + len(self.lines)
        if end > len(new):
            return None
        for (own, sent), line in zip(self.lines, new[at:end], strict=True):
            if line == own:
                continue
            wanted = sent if sent is not None else own
            assert wanted is not None
            known = [get_trailing_space(one) for one in (own, sent) if one is not None]
            if fold_line(line) != fold_line(wanted) or get_trailing_space(line) not in ("", *known):
                return None
            if line.strip() and not is_moved_alike(self.depths, measure_indent(wanted), measure_indent(line)):
                return None
        return end


@dataclass(frozen=True)
class LocatedChange:
    """One change with its places: `starts` where all its lines are contiguous, `places` the others."""

    change: Replacement
    starts: tuple[int, ...]
    places: tuple[SpanEdit, ...] = ()

    def iter_starts(self, first: int, last: int) -> Iterator[int]:
        """Yield starts in [first, last]: first the line that the change names, then the last `MAX_OPTIONS` of them."""
        low, high = bisect_left(self.starts, first), bisect_right(self.starts, last)
        line = self.change.hint.line
        at = bisect_left(self.starts, line) if line is not None else high
        if low <= at < high and self.starts[at] == line:
            yield self.starts[at]
        yield from self.starts[max(low, high - MAX_OPTIONS) : high][::-1]

    def build_edit(self, start: int, old: Sequence[str]) -> SpanEdit:
        """Return the edit of the change at a place of its old lines: the lines that it keeps are the file's own."""
        before, after = self.change.before, self.change.after
        stands = old[start : start + len(before)]
        own = [None if at is None else stands[at] for at in self._source_rows]
        depths = {
            (measure_indent(sent), measure_indent(line))
            for line, sent in zip(stands, before, strict=True)
            if sent.strip()
        }
        return SpanEdit(start, start + len(before), tuple(zip(own, after, strict=True)), frozenset(depths or {(0, 0)}))

    @cached_property
    def _source_rows(self) -> list[int | None]:
        kept: list[int | None] = [None] * len(self.change.after)
        for op in line_opcodes(self.change.before, self.change.after):
            if op.equal:
                kept[op.b_start : op.b_end] = range(op.a_start, op.a_end)
        return kept


class StartIndex:
    """Finds changes by the lines where they may begin."""

    def __init__(self, found: list[tuple[int, int]]) -> None:
        self._found = sorted(found)

    def list_numbers(self, first: int, last: int) -> list[int]:
        """Return the numbers of the changes that may begin in [first, last], the last of them first."""
        low, high = bisect_left(self._found, (first, -1)), bisect_left(self._found, (last + 1, -1))
        rows = self._found[max(low, high - MAX_OPTIONS) : high]
        return list(dict.fromkeys(number for _, number in reversed(rows)))
