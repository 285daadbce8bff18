"""Finds out whether replacements of lines (SEARCH/REPLACE blocks, hunks, ranges) turn an original into a result.

Each replacement is made at one place: all of them in the original, or one after the other. A place is found by lines
that are equal except for indentation and look-alike characters. This is looser than the ladder of the merge, because
the result is known here. Everything outside of the places must be equal character by character.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TypeVar

from rapidfuzz import fuzz

from editor.attribution.snippet import get_trailing_space, is_moved_alike, measure_indent
from editor.diff import line_opcodes
from editor.errors import TooMuchWorkError
from editor.hunks.locate import restore_signs
from editor.match.elision import is_elision, split_pieces
from editor.match.file_style import find_line_replacements
from editor.match.ladder import LineIndex, fold_line
from editor.types import ParsedEdit, Replacement

State = TypeVar("State")

MAX_OPTIONS = 50  # places, or changes, that are tried at one point of a search
MAX_TRIES = 5_000  # places and orders that are tried for one edit, in addition to one for each change
MAX_LINES = 400_000  # lines of changes that are compared at the places that are tried
MAX_LOOKS = 300_000  # changes with many places that are checked for where they may be made next
_MAX_LONGER = 2
_FEW_PLACES = 20
_MIN_LIKENESS = 50.0


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


class ReplacementSearch:
    """Searches the places at which replacements give a result."""

    def __init__(self, original: str, result: str, edit: ParsedEdit, changes: Sequence[Replacement], by_model: bool):
        self.old, self.old_ends = split_lines(original)
        self.new, self.new_ends = split_lines(result)
        self.edit, self.by_model = edit, by_model
        self.changes = [one for one in changes if one.before != one.after or one.hint.num_unseen]
        self.index = LineIndex(self.old)
        self.left = MAX_TRIES + len(self.changes)
        self.lines_left = MAX_LINES
        self.looks_left = MAX_LOOKS
        self._standing: dict[int, bool] = {}
        self._places: dict[tuple[str, ...], tuple[int, ...]] = {}

    def can_reach_result(self) -> bool:
        """Return whether the changes, each made at some place, give the result."""
        if not self._is_end_accounted():
            return False
        if self._can_apply_together():
            return True
        if not self.edit.ordered and len(self.changes) > 1 and self._can_apply_in_turn():
            return True
        if min(self.left, self.lines_left, self.looks_left) <= 0:
            raise TooMuchWorkError("the places of its changes are too many to try")
        return False

    def _is_end_accounted(self) -> bool:
        """Return whether the final newline is as the edit says or as before, or changed with the last line."""
        if self.edit.final_newline is not None:
            return self.new_ends == self.edit.final_newline or not self.new
        return self.old_ends == self.new_ends or not self.old or not self.new or self.old[-1] != self.new[-1]

    def _can_apply_together(self) -> bool:
        """Return whether the changes give the result if each is looked for in the original.

        From the top on, equal lines of both texts are skipped; a change has to be made at or above the first
        difference. The changes that are left at the end must already be in the file.
        """
        stack = [(0, 0, (1 << len(self.changes)) - 1)]
        seen: set[tuple[int, int, int]] = set()
        while stack and self.left > 0 and self.lines_left > 0 and self.looks_left > 0:
            state = stack.pop()
            if state in seen:
                continue
            seen.add(state)
            self.left -= 1
            old, new, waiting = state
            same = self._count_equal(old, new)
            if (
                old + same == len(self.old)
                and new + same == len(self.new)
                and all(map(self._is_applied, _iter_numbers(waiting)))
            ):
                return True
            options: list[tuple[int, int, int]] = []
            for number, place in self._find_next_places(old, new, same, waiting):
                self.lines_left -= len(place.lines)
                end = place.find_end(self.new, new + place.start - old)
                if end is not None:
                    options.append((place.end, end, waiting & ~(1 << number)))
                if len(options) == MAX_OPTIONS or self.lines_left < 0 or self.looks_left < 0:
                    break
            stack += reversed(options)
        return False

    def _find_next_places(self, old: int, new: int, same: int, waiting: int) -> Iterator[tuple[int, SpanEdit]]:
        """Yield the changes that may be made next, each with a place; those nearest to the first difference first."""
        last = old + same
        if self.edit.ordered:
            numbers = self._list_next_changes(waiting)
        else:
            numbers = [*self._list_rare(old, last), *self._list_common(old, last)]
        for number in numbers:
            if not waiting >> number & 1:
                continue
            self.looks_left -= 1
            found = self._found[number]
            for start in found.iter_starts(old, last):
                if not self.edit.ordered or not self._lacks_sign(found.change, start):
                    yield number, found.build_edit(start, self.old)
            if not found.starts and not found.places:
                for place in self._guess_places(self.changes[number], old, new, same):
                    yield number, place
            yield from ((number, place) for place in found.places if old <= place.start <= last)

    def _list_next_changes(self, waiting: int) -> list[int]:
        """Return the first waiting change, and the ones after it as long as those before are already in the file."""
        numbers: list[int] = []
        for number in _iter_numbers(waiting):
            numbers.append(number)
            if not self._is_applied(number):
                break
        return numbers

    def _count_equal(self, old: int, new: int) -> int:
        """Return how many lines of both texts are equal from these on."""
        a, b = self._ids

        def is_equal(start: int, end: int) -> bool:
            return a[(old + start) * 8 : (old + end) * 8] == b[(new + start) * 8 : (new + end) * 8]

        longest = min(len(self.old) - old, len(self.new) - new)
        low, size = 0, 64
        while low < (high := min(low + size, longest)) and is_equal(low, high):
            low, size = high, size * 4
        while low < high:  # the first difference is between them
            middle = (low + high + 1) // 2
            low, high = (middle, high) if is_equal(low, middle) else (low, middle - 1)
        return low

    @cached_property
    def _ids(self) -> tuple[bytes, bytes]:
        """Both texts with 8 bytes for each line, so that many lines are compared at once."""
        ids: dict[str, int] = {}
        old, new = (array("q", [ids.setdefault(line, len(ids)) for line in lines]) for lines in (self.old, self.new))
        return old.tobytes(), new.tobytes()

    @cached_property
    def _found(self) -> list[LocatedChange]:
        return [self._find(change) for change in self.changes]

    @cached_property
    def _rare(self) -> list[tuple[int, int]]:
        """The places of the changes that have few, in order, each with the number of its change."""
        common = set(self._common)
        return sorted(
            (start, number)
            for number, found in enumerate(self._found)
            if number not in common
            for start in (*found.starts, *(place.start for place in found.places))
        )

    def _list_rare(self, first: int, last: int) -> list[int]:
        """Return the changes with few places that may begin in [first, last], the last of them first."""
        low, high = bisect_left(self._rare, (first, -1)), bisect_left(self._rare, (last + 1, -1))
        return list(dict.fromkeys(number for _, number in reversed(self._rare[max(low, high - MAX_OPTIONS) : high])))

    @cached_property
    def _common(self) -> list[int]:
        """The changes with many places, or with none."""
        sizes = [len(found.starts) + len(found.places) for found in self._found]
        return [number for number, size in enumerate(sizes) if not 0 < size <= _FEW_PLACES]

    def _list_common(self, first: int, last: int) -> list[int]:
        """Return the changes with many places, or with none, that may begin in [first, last], in the edit's order."""
        if self.by_model or last - first > len(self._common):
            return self._common
        keys = self.index.key_by(fold_line).keys[first : last + 1]
        found = {number for key in dict.fromkeys(keys) for number in self._common_heads.get(key, ())}
        return sorted(found.union(self._common_heads.get(None, ())))

    @cached_property
    def _common_heads(self) -> dict[str | None, list[int]]:
        """The changes with many places by their first line; under None those that are not contiguous."""
        heads: dict[str | None, list[int]] = {}
        for number in self._common:
            found = self._found[number]
            if found.starts:
                heads.setdefault(fold_line(found.change.before[0]), []).append(number)
            elif found.places:
                heads.setdefault(None, []).append(number)
        return heads

    def _is_applied(self, number: int) -> bool:
        """Return whether the new lines of a change are already in the original."""
        if number not in self._standing:
            after = self.changes[number].after
            self._standing[number] = any(map(fold_line, after)) and bool(self._find_starts(after))
        return self._standing[number]

    def _find_starts(self, lines: Sequence[str]) -> tuple[int, ...]:
        """Return where lines are in the original; each text is looked for once."""
        keys = tuple(map(fold_line, lines))
        if len(keys) > len(self.old):
            return ()
        if keys not in self._places:
            self._places[keys] = self.index.key_by(fold_line).find_starts(keys)
        return self._places[keys]

    def _find(self, change: Replacement) -> LocatedChange:
        """Return every place in the original where a change may be made."""
        for variant in _list_variants(change, is_hunk=self.edit.ordered):
            if not any(line.strip() for line in variant.before):
                places = tuple(self._find_insertions(variant))
                if places:
                    return LocatedChange(variant, (), places)
                continue
            starts = self._find_starts(variant.before)
            if starts:
                return LocatedChange(variant, starts)
            if any(map(is_elision, variant.before)):
                places = tuple(self._find_elided_places(variant))
                if places:
                    return LocatedChange(variant, (), places)
        return LocatedChange(change, ())

    def _lacks_sign(self, change: Replacement, start: int) -> bool:
        """Return whether every line of a hunk is one blank deeper in the file: its lines may lack their sign."""
        stands = self.old[start : start + len(change.before)]
        shifts = {
            measure_indent(line) - measure_indent(sent)
            for line, sent in zip(stands, change.before, strict=True)
            if sent.strip()
        }
        return shifts == {1} and change.before != change.after

    @cached_property
    def _is_blank(self) -> bool:
        return not any(line.strip() for line in self.old)

    def _find_insertions(self, change: Replacement) -> Iterator[SpanEdit]:
        """Yield the places of a change without old lines: the hinted line, the end, below a scope, an empty file."""
        hint, old = change.hint, self.old
        new_lines = tuple((None, line) for line in change.after)
        if self._is_blank:
            yield SpanEdit(0, len(old), new_lines)
        if hint.line is not None and hint.line + hint.num_unseen <= len(old):
            yield SpanEdit(hint.line, hint.line + (hint.num_unseen or len(change.before)), new_lines)
        if hint.at_end or hint.scopes or (self.by_model and hint.line is None):
            yield SpanEdit(len(old), len(old), new_lines)
        if hint.scopes:
            yield from (SpanEdit(at, at, new_lines) for at in range(1, len(old)))

    def _find_elided_places(self, change: Replacement) -> Iterator[SpanEdit]:
        """Yield the places of a change whose `...` leave lines out, in the same order on both sides."""
        old_pieces, new_pieces = split_pieces(change.before), split_pieces(change.after)
        if len(old_pieces) != len(new_pieces):
            return
        # The lines that `...` leaves out may move as far as the `...` of both sides differ.
        elided = [[measure_indent(line) for line in side if is_elision(line)] for side in (change.before, change.after)]
        solid = [at for at, piece in enumerate(old_pieces) if piece]
        starts_of = [
            self.index.key_by(fold_line).find_starts([fold_line(line) for line in old_pieces[at]])[:20] for at in solid
        ]
        for starts in product(*starts_of):
            self.left -= 1
            if self.left < 0:
                return
            ends = [start + len(old_pieces[at]) for at, start in zip(solid, starts, strict=True)]
            if any(start < end for end, start in zip(ends, starts[1:], strict=False)):
                continue
            lines: list[tuple[str | None, str | None]] = []
            depths: set[tuple[int, int]] = set()
            for row, at in enumerate(solid):
                piece = Replacement(tuple(old_pieces[at]), tuple(new_pieces[at]))
                part = LocatedChange(piece, ()).build_edit(starts[row], self.old)
                lines += part.lines
                depths |= part.depths
                if row + 1 < len(solid):
                    lines += ((line, None) for line in self.old[ends[row] : starts[row + 1]])
                    depths.update(zip(*elided, strict=False))
            yield SpanEdit(starts[0], ends[-1], tuple(lines), frozenset(depths))

    def _guess_places(self, change: Replacement, old: int, new: int, same: int) -> Iterator[SpanEdit]:
        """Yield places near the first difference for a change whose old lines are not found; only by a model."""
        if not self.by_model or not change.before:
            return
        sought = "\n".join(line.strip() for line in change.before)
        lines = tuple((None, line) for line in change.after)
        for start in range(max(old, old + same - len(change.after)), old + same + 1):
            depths = frozenset({(0, 0), self._find_depth(change, new + start - old)})
            for end in range(start, min(len(self.old), start + len(change.before) + _MAX_LONGER) + 1):
                stands = "\n".join(line.strip() for line in self.old[start:end])
                if fuzz.ratio(sought, stands) >= _MIN_LIKENESS:
                    yield SpanEdit(start, end, lines, depths)

    def _find_depth(self, change: Replacement, new: int) -> tuple[int, int]:
        sent = next((at for at, line in enumerate(change.after) if line.strip()), None)
        if sent is None or new + sent >= len(self.new):
            return 0, 0
        return measure_indent(change.after[sent]), measure_indent(self.new[new + sent])

    def _can_apply_in_turn(self) -> bool:
        """Return whether the changes give the result if each is made in the text that the ones before it left."""
        return can_reach(self.old, len(self.changes), lambda lines: lines == self.new, self._apply_change)

    def _apply_change(self, lines: list[str], number: int) -> Iterator[list[str]]:
        """Yield the lines after one change, for each place where it may be made."""
        self.left -= 1
        change = self.changes[number]
        if self.left < 0 or not any(line.strip() for line in change.before):
            return
        index = LineIndex(lines)
        made = list(find_line_replacements(index, change))
        keys = [fold_line(line) for line in change.after]
        if not made and any(keys) and len(keys) <= len(lines) and index.key_by(fold_line).find_starts(keys):
            made.append(lines)
        yield from made[:50]


def _iter_numbers(waiting: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, lowest first."""
    while waiting:
        yield (waiting & -waiting).bit_length() - 1
        waiting &= waiting - 1


def can_reach(
    start: State, num_steps: int, is_goal: Callable[[State], bool], list_next: Callable[[State, int], Iterator[State]]
) -> bool:
    """Return whether `num_steps` steps, each to a state that `list_next` yields, reach the goal; depth first.

    Only states with other steps left are kept: there may be thousands of steps, and a state may be a whole file.
    """
    waiting: list[tuple[State, int, Iterator[State]]] = [(start, 0, iter(()))]
    while waiting:
        state, number, others = waiting.pop()
        if number == num_steps and is_goal(state):
            return True
        if (other := next(others, None)) is not None:
            waiting.append((other, number, others))
        following = list_next(state, number) if number < num_steps else iter(())
        if (first := next(following, None)) is not None:
            waiting.append((first, number + 1, following))
    return False


def split_lines(text: str) -> tuple[list[str], bool]:
    lines = text.split("\n") if text else []
    ends = bool(lines) and lines[-1] == ""
    return (lines[:-1] if ends else lines), ends


def _list_variants(change: Replacement, *, is_hunk: bool) -> Iterator[Replacement]:
    """Yield a change as it was sent, without line numbers, and without blank lines at its ends."""
    if change.verbatim is not None:
        yield change.verbatim
    yield (restore_signs(change) if is_hunk else None) or change
    before, after = _count_blank_ends(change.before), _count_blank_ends(change.after)
    if before == after and before != (0, 0) and any(map(str.strip, change.before)):
        above, below = before
        yield replace(
            change,
            before=change.before[above : len(change.before) - below],
            after=change.after[above : len(change.after) - below],
        )


def _count_blank_ends(lines: Sequence[str]) -> tuple[int, int]:
    solid = [at for at, line in enumerate(lines) if line.strip()]
    return (solid[0], len(lines) - 1 - solid[-1]) if solid else (-1, -1)
