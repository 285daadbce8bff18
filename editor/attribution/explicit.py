"""Whether a result is the original with an explicit edit's own replacements made, and nothing else changed.

Every change of the edit is made at one place (or everywhere, where it says so), in turn or all in the original. A place
is found by lines that are equal but for indentation and look-alike characters: looser than the ladder of the merge, as
the result is known here. What lies outside of the places must be equal character for character.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TypeVar

import numpy as np
from rapidfuzz import fuzz

from editor.attribution.snippet import is_moved_alike, measure_indent
from editor.diff import line_opcodes
from editor.errors import TooMuchWorkError
from editor.hunks.locate import restore_signs
from editor.match.file_style import adapt_to_file
from editor.match.ladder import LineIndex, find_places, fold_line
from editor.placeholders import is_placeholder
from editor.types import ParsedEdit, Replacement, Sketch, Substitution, Substitutions, UnaccountedLine

State = TypeVar("State")

MAX_TRIES = 5_000
"""Places and ways that are tried for one edit, beside one for each change; past it no way counts as found."""

MAX_LINES = 400_000
"""Lines of changes that are compared at the places that are tried."""

MAX_LOOKS = 300_000
"""Changes of many places that are asked where they may be made next."""

_MAX_LONGER = 2
_MAX_OPTIONS = 50
_FEW_PLACES = 20
_MIN_LIKENESS = 50.0


def find_unaccounted_lines(original: str, result: str, edit: ParsedEdit, *, by_model: bool) -> list[UnaccountedLine]:
    r"""Return the changed lines that an explicit edit does not account for, none where it leads to the result.

    Both texts have "\n" lines. `by_model` says that a block whose text stands nowhere may be put at the one place where
    the result has it, if that is much like what the block looks for. Raises `TooMuchWorkError` where a bound ended the
    search for a way.
    """
    if isinstance(edit.changes, Sketch):
        (block,) = edit.changes.blocks
        leads = _strip_trailing_blanks(block) == _strip_trailing_blanks(result.removesuffix("\n").split("\n"))
    elif isinstance(edit.changes, Substitutions):
        leads = _SubstitutionSearch(original, result, edit, edit.changes.items, by_model).can_reach_result()
    else:
        leads = _ReplacementSearch(original, result, edit, edit.changes, by_model).can_reach_result()
    return [] if leads else find_changed_lines(original, result, edit)


def _strip_trailing_blanks(lines: Sequence[str]) -> list[str]:
    rows = [line.rstrip() for line in lines]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def find_changed_lines(original: str, result: str, edit: ParsedEdit) -> list[UnaccountedLine]:
    """Return the changed lines that the edit does not quote; all of them where it quotes each."""
    old, new = original.split("\n"), result.split("\n")
    quoted = {line.strip() for line in edit.old_lines}
    written = {line.strip() for line in edit.new_lines}
    found: list[UnaccountedLine] = []
    rest: list[UnaccountedLine] = []
    for op in line_opcodes(old, new):
        if op.equal:
            continue
        for at in range(op.a_start, op.a_end):
            line = UnaccountedLine(at + 1, "removed", old[at])
            (rest if old[at].strip() in quoted else found).append(line)
        for at in range(op.b_start, op.b_end):
            line = UnaccountedLine(at + 1, "added", new[at])
            (rest if new[at].strip() in written else found).append(line)
    return found or rest or [UnaccountedLine(0, "missing", line) for line in edit.new_lines[:1] or ("",)]


@dataclass(frozen=True, slots=True)
class _SpanEdit:
    """Lines [start, end) of the original, and the lines that stand there instead.

    Each line is a pair: the file's own line (None for a new one) and the line as sent (None where `...` leaves it out).
    `depths` are the indentations that the old lines have in the edit and in the file, in columns.
    """

    start: int
    end: int
    lines: tuple[tuple[str | None, str | None], ...]
    depths: frozenset[tuple[int, int]] = frozenset({(0, 0)})

    def find_end(self, new: Sequence[str], at: int) -> int | None:
        """Return the line of the result behind what is written there, None if something else stands there."""
        end = at + len(self.lines)
        if end > len(new):
            return None
        for (own, sent), line in zip(self.lines, new[at:end], strict=True):
            if line == own:
                continue
            wanted = sent if sent is not None else own
            assert wanted is not None
            known = [_get_trailing_blanks(one) for one in (own, sent) if one is not None]
            if fold_line(line) != fold_line(wanted) or _get_trailing_blanks(line) not in ("", *known):
                return None
            if line.strip() and not is_moved_alike(self.depths, measure_indent(wanted), measure_indent(line)):
                return None
        return end


def _get_trailing_blanks(line: str) -> str:
    return line[len(line.rstrip()) :]


@dataclass(frozen=True)
class _LocatedChange:
    """One change with the places of its lines: `starts` where they stand in one piece, `places` the others."""

    change: Replacement
    starts: tuple[int, ...]
    places: tuple[_SpanEdit, ...] = ()

    def iter_starts(self, first: int, last: int) -> Iterator[int]:
        """Yield the starts in [first, last]: the line that the change gives first, then the last of them, so many."""
        low, high = bisect_left(self.starts, first), bisect_right(self.starts, last)
        line = self.change.hint.line
        at = bisect_left(self.starts, line) if line is not None else high
        if low <= at < high and self.starts[at] == line:
            yield self.starts[at]
        yield from self.starts[max(low, high - _MAX_OPTIONS) : high][::-1]

    def build_edit(self, start: int, old: Sequence[str]) -> _SpanEdit:
        """Return what the change leaves where its old lines stand: lines that it keeps are the file's own."""
        before, after = self.change.before, self.change.after
        stands = old[start : start + len(before)]
        own = [None if at is None else stands[at] for at in self._source_rows]
        depths = {
            (measure_indent(sent), measure_indent(line))
            for line, sent in zip(stands, before, strict=True)
            if sent.strip()
        }
        return _SpanEdit(start, start + len(before), tuple(zip(own, after, strict=True)), frozenset(depths or {(0, 0)}))

    @cached_property
    def _source_rows(self) -> list[int | None]:
        kept: list[int | None] = [None] * len(self.change.after)
        for op in line_opcodes(self.change.before, self.change.after):
            if op.equal:
                kept[op.b_start : op.b_end] = range(op.a_start, op.a_end)
        return kept


class _StartIndex:
    """Changes by the lines where they may begin."""

    def __init__(self, found: list[tuple[int, int]]) -> None:
        self._found = sorted(found)

    def list_numbers(self, first: int, last: int) -> list[int]:
        """Return the numbers of the changes that may begin in [first, last], the last of them first."""
        low, high = bisect_left(self._found, (first, -1)), bisect_left(self._found, (last + 1, -1))
        rows = self._found[max(low, high - _MAX_OPTIONS) : high]
        return list(dict.fromkeys(number for _, number in reversed(rows)))


class _ReplacementSearch:
    """Replacements of lines (SEARCH/REPLACE blocks, hunks, ranges) between one original and one result."""

    def __init__(self, original: str, result: str, edit: ParsedEdit, changes: Sequence[Replacement], by_model: bool):
        self.old, self.old_ends = _split_lines(original)
        self.new, self.new_ends = _split_lines(result)
        self.edit, self.by_model = edit, by_model
        self.changes = [one for one in changes if one.before != one.after or one.hint.num_unseen]
        self.index = LineIndex(self.old)
        self.left = MAX_TRIES + len(self.changes)
        self.lines_left = MAX_LINES
        self.looks_left = MAX_LOOKS
        self._standing: dict[int, bool] = {}
        self._places: dict[tuple[str, ...], tuple[int, ...]] = {}

    def can_reach_result(self) -> bool:
        """Tell whether the changes, made somewhere, give the result."""
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
        """Tell whether the final newline is as the edit says, or as it was, or went with the last line."""
        if self.edit.final_newline is not None:
            return self.new_ends == self.edit.final_newline or not self.new
        return self.old_ends == self.new_ends or not self.old or not self.new or self.old[-1] != self.new[-1]

    def _can_apply_together(self) -> bool:
        """Tell whether the changes lead to the result where each is looked for in the original.

        From the top on, lines that are equal in both texts are passed over; a change has to be made at or above the
        first difference. What is left at the end must stand in the file already.
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
            if old + same == len(self.old) and new + same == len(self.new) and self._is_each_applied(waiting):
                return True
            options: list[tuple[int, int, int]] = []
            for number, place in self._find_next_places(old, new, same, waiting):
                self.lines_left -= len(place.lines)
                end = place.find_end(self.new, new + place.start - old)
                if end is not None:
                    options.append((place.end, end, waiting & ~(1 << number)))
                if len(options) == _MAX_OPTIONS or self.lines_left < 0 or self.looks_left < 0:
                    break
            stack += reversed(options)
        return False

    def _find_next_places(self, old: int, new: int, same: int, waiting: int) -> Iterator[tuple[int, _SpanEdit]]:
        """Yield the changes that may be made next, each with a place; those nearest to the first difference first."""
        last = old + same
        if self.edit.ordered:
            numbers = self._list_next_changes(waiting)
        else:
            numbers = [*self._rare.list_numbers(old, last), *self._list_common(old, last)]
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
        """Return the first change that waits, and the next ones where those before them stand in the file already."""
        numbers: list[int] = []
        while waiting:
            number = (waiting & -waiting).bit_length() - 1
            numbers.append(number)
            waiting &= waiting - 1
            if not self._is_applied(number):
                break
        return numbers

    def _is_each_applied(self, waiting: int) -> bool:
        while waiting:
            number = (waiting & -waiting).bit_length() - 1
            if not self._is_applied(number):
                return False
            waiting &= waiting - 1
        return True

    def _count_equal(self, old: int, new: int) -> int:
        """Return how many lines are equal one below the other, from these on."""
        a, b = self._ids
        size, total = 64, 0
        while True:
            left, right = a[old + total : old + total + size], b[new + total : new + total + size]
            shorter = min(len(left), len(right))
            differs = np.nonzero(left[:shorter] != right[:shorter])[0]
            if len(differs):
                return total + int(differs[0])
            total += shorter
            if shorter < size:
                return total
            size *= 4

    @cached_property
    def _ids(self) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], np.ndarray[tuple[int], np.dtype[np.int64]]]:
        ids: dict[str, int] = {}
        old = np.array([ids.setdefault(line, len(ids)) for line in self.old], np.int64)
        return old, np.array([ids.setdefault(line, len(ids)) for line in self.new], np.int64)

    @cached_property
    def _found(self) -> list[_LocatedChange]:
        return [self._find(change) for change in self.changes]

    @cached_property
    def _rare(self) -> _StartIndex:
        """The changes of few places, by these."""
        return _StartIndex(
            [
                (start, number)
                for number, found in enumerate(self._found)
                if number not in self._common
                for start in (*found.starts, *(place.start for place in found.places))
            ]
        )

    @cached_property
    def _common(self) -> list[int]:
        """The changes of many places, or of none."""
        sizes = [len(found.starts) + len(found.places) for found in self._found]
        return [number for number, size in enumerate(sizes) if not 0 < size <= _FEW_PLACES]

    def _list_common(self, first: int, last: int) -> list[int]:
        """Return the changes of many places, or of none, that may begin in [first, last], in the edit's order."""
        if self.by_model or last - first > len(self._common):
            return self._common
        keys = self.index.key_by(fold_line).keys[first : last + 1]
        found = {number for key in dict.fromkeys(keys) for number in self._common_heads.get(key, ())}
        return sorted(found.union(self._common_heads.get(None, ())))

    @cached_property
    def _common_heads(self) -> dict[str | None, list[int]]:
        """The changes of many places by the first of their lines; under None those that stand in pieces."""
        heads: dict[str | None, list[int]] = {}
        for number in self._common:
            found = self._found[number]
            if found.starts:
                heads.setdefault(fold_line(found.change.before[0]), []).append(number)
            elif found.places:
                heads.setdefault(None, []).append(number)
        return heads

    def _is_applied(self, number: int) -> bool:
        """Tell whether the new lines of a change stand in the original already."""
        if number not in self._standing:
            after = self.changes[number].after
            self._standing[number] = any(map(fold_line, after)) and bool(self._find_starts(after))
        return self._standing[number]

    def _find_starts(self, lines: Sequence[str]) -> tuple[int, ...]:
        """Return where lines stand one below the other; the same lines are looked for once."""
        keys = tuple(map(fold_line, lines))
        if len(keys) > len(self.old):
            return ()
        if keys not in self._places:
            self._places[keys] = self.index.key_by(fold_line).find_starts(keys)
        return self._places[keys]

    def _find(self, change: Replacement) -> _LocatedChange:
        """Return every place in the original where a change may be made."""
        for variant in _list_variants(change, is_hunk=self.edit.ordered):
            if not any(line.strip() for line in variant.before):
                places = tuple(self._find_insertions(variant))
                if places:
                    return _LocatedChange(variant, (), places)
                continue
            starts = self._find_starts(variant.before)
            if starts:
                return _LocatedChange(variant, starts)
            if any(map(_is_elision, variant.before)):
                places = tuple(self._find_elided_places(variant))
                if places:
                    return _LocatedChange(variant, (), places)
        return _LocatedChange(change, ())

    def _lacks_sign(self, change: Replacement, start: int) -> bool:
        """Tell whether every line of a hunk stands one blank deeper: the sign before its lines may be missing."""
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

    def _find_insertions(self, change: Replacement) -> Iterator[_SpanEdit]:
        """Yield where lines that quote nothing may go: the line given, the end, below a scope, an empty file."""
        hint, old = change.hint, self.old
        new_lines = tuple((None, line) for line in change.after)
        if self._is_blank:
            yield _SpanEdit(0, len(old), new_lines)
        if hint.line is not None and hint.line + hint.num_unseen <= len(old):
            yield _SpanEdit(hint.line, hint.line + (hint.num_unseen or len(change.before)), new_lines)
        if hint.at_end or hint.scopes or (self.by_model and hint.line is None):
            yield _SpanEdit(len(old), len(old), new_lines)
        if hint.scopes:
            yield from (_SpanEdit(at, at, new_lines) for at in range(1, len(old)))

    def _find_elided_places(self, change: Replacement) -> Iterator[_SpanEdit]:
        """Yield the places of a change that leaves lines out with `...`, on both sides in the same order."""
        old_pieces, new_pieces = _split_pieces(change.before), _split_pieces(change.after)
        if len(old_pieces) != len(new_pieces):
            return
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
                part = _LocatedChange(piece, ()).build_edit(starts[row], self.old)
                lines += part.lines
                depths |= part.depths
                if row + 1 < len(solid):
                    lines += ((line, None) for line in self.old[ends[row] : starts[row + 1]])
                    depths |= _find_elision_depths(change)
            yield _SpanEdit(starts[0], ends[-1], tuple(lines), frozenset(depths))

    def _guess_places(self, change: Replacement, old: int, new: int, same: int) -> Iterator[_SpanEdit]:
        """Yield places of a change whose text stands nowhere, near where the two texts part; only for a model."""
        if not self.by_model or not change.before:
            return
        sought = "\n".join(line.strip() for line in change.before)
        lines = tuple((None, line) for line in change.after)
        for start in range(max(old, old + same - len(change.after)), old + same + 1):
            depths = frozenset({(0, 0), self._find_depth(change, new + start - old)})
            for end in range(start, min(len(self.old), start + len(change.before) + _MAX_LONGER) + 1):
                stands = "\n".join(line.strip() for line in self.old[start:end])
                if fuzz.ratio(sought, stands) >= _MIN_LIKENESS:
                    yield _SpanEdit(start, end, lines, depths)

    def _find_depth(self, change: Replacement, new: int) -> tuple[int, int]:
        sent = next((at for at, line in enumerate(change.after) if line.strip()), None)
        if sent is None or new + sent >= len(self.new):
            return 0, 0
        return measure_indent(change.after[sent]), measure_indent(self.new[new + sent])

    def _can_apply_in_turn(self) -> bool:
        """Tell whether the changes lead to the result where each is made in what the ones before it left."""
        return _can_reach(self.old, len(self.changes), lambda lines: lines == self.new, self._apply_change)

    def _apply_change(self, lines: list[str], number: int) -> Iterator[list[str]]:
        """Yield what may become of the lines by one change."""
        self.left -= 1
        change = self.changes[number]
        if self.left < 0 or not any(line.strip() for line in change.before):
            return
        index = LineIndex(lines)
        places = find_places(index, change.before)
        made: list[list[str]] = []
        for start, shift in zip(places.starts, places.shifts, strict=True) if places else ():
            end = start + len(change.before)
            written = adapt_to_file(change, lines[start:end], shift, places.rung) if places else None
            if written is not None:
                made.append([*lines[:start], *written.lines, *lines[end:]])
        keys = [fold_line(line) for line in change.after]
        if not made and any(keys) and len(keys) <= len(lines) and index.key_by(fold_line).find_starts(keys):
            made.append(lines)
        yield from made[:50]


class _SubstitutionSearch:
    """Substitutions of characters between one original and one result."""

    def __init__(self, original: str, result: str, edit: ParsedEdit, items: Sequence[Substitution], by_model: bool):
        self.original, self.result, self.edit = original, result, edit
        self.items, self.by_model = items, by_model
        self.left = MAX_TRIES + len(items)

    def can_reach_result(self) -> bool:
        """Tell whether the substitutions give the result: made in turn, or as whole lines all in the original."""
        if _can_reach(self.original, len(self.items), lambda text: text == self.result, self._apply_substitution):
            return True
        if len(self.items) < 2 or any(item.replace_all or not item.old for item in self.items):
            return False
        changes = [to_replacement(item) for item in self.items]
        return _ReplacementSearch(self.original, self.result, self.edit, changes, self.by_model).can_reach_result()

    def _apply_substitution(self, text: str, number: int) -> Iterator[str]:
        """Yield what may become of the text by one substitution."""
        self.left -= 1
        if self.left < 0:
            return
        item = self.items[number]
        if item.old == item.new:
            yield text
        elif not item.old:
            yield from () if text.strip() else (item.new,)
        elif item.old not in text:
            yield from self._apply_as_lines(text, number)
        elif item.replace_all:
            yield text.replace(item.old, item.new)
        else:
            last = number == len(self.items) - 1
            low, high = _find_difference(text, self.result) if last else (0, len(text))
            at = text.find(item.old, max(0, low - len(item.old) - len(item.new)))
            while 0 <= at <= high + len(item.new):
                yield text[:at] + item.new + text[at + len(item.old) :]
                at = text.find(item.old, at + 1)
            if item.new in text:  # sent again, it is made already
                yield text

    def _apply_as_lines(self, text: str, number: int) -> Iterator[str]:
        """An old text that stands nowhere is looked for as whole lines; the last change may be made anywhere so."""
        item = self.items[number]
        if item.new in text:
            yield text
        change = to_replacement(item)
        if number == len(self.items) - 1:
            if _ReplacementSearch(text, self.result, self.edit, [change], self.by_model).can_reach_result():
                yield self.result
            return
        lines, ends = _split_lines(text)
        index = LineIndex(lines)
        places = find_places(index, change.before) if any(map(str.strip, change.before)) else None
        for start, shift in zip(places.starts, places.shifts, strict=True) if places else ():
            end = start + len(change.before)
            written = adapt_to_file(change, lines[start:end], shift, places.rung) if places else None
            if written is not None:
                yield "\n".join([*lines[:start], *written.lines, *lines[end:]]) + "\n" * ends


def _can_reach(
    start: State, num_steps: int, is_goal: Callable[[State], bool], list_next: Callable[[State, int], Iterator[State]]
) -> bool:
    """Tell whether so many steps, each to one of what `list_next` yields, lead to the goal; depth first.

    Of a way with no other to go back to, nothing is kept: there may be thousands of steps, and a state may be a file.
    """
    waiting: list[tuple[State, int, Iterator[State]]] = [(start, 0, iter(()))]
    while waiting:
        state, number, others = waiting.pop()
        if number == num_steps and is_goal(state):
            return True
        for other in others:
            waiting.append((other, number, others))
            break
        if number < num_steps:
            following = list_next(state, number)
            for first in following:
                waiting.append((first, number + 1, following))
                break
    return False


def to_replacement(item: Substitution) -> Replacement:
    """Return the lines of a substitution; a newline that ends both texts, or all that is taken away, ends a line."""
    old, new = item.old, item.new
    if old.endswith("\n") and (new.endswith("\n") or not new):
        return Replacement(tuple(old[:-1].split("\n")), tuple(new[:-1].split("\n")) if new else ())
    return Replacement(tuple(old.split("\n")), tuple(new.split("\n")))


def _find_difference(a: str, b: str) -> tuple[int, int]:
    """Return the range of `a` outside of which two texts are the same."""
    shorter = min(len(a), len(b))
    low = next((at for at in range(0, shorter, 4096) if a[at : at + 4096] != b[at : at + 4096]), shorter // 4096 * 4096)
    while low < shorter and a[low] == b[low]:
        low += 1
    same = 0
    while (
        same + 4096 <= shorter - low
        and a[len(a) - same - 4096 : len(a) - same] == b[len(b) - same - 4096 : len(b) - same]
    ):
        same += 4096
    while same < shorter - low and a[-1 - same] == b[-1 - same]:
        same += 1
    return low, len(a) - same


def _split_lines(text: str) -> tuple[list[str], bool]:
    lines = text.split("\n") if text else []
    ends = bool(lines) and lines[-1] == ""
    return (lines[:-1] if ends else lines), ends


def _list_variants(change: Replacement, *, is_hunk: bool) -> Iterator[Replacement]:
    """Yield a change as it was sent, without numbers before its lines, and without blank lines at its ends."""
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


def _is_elision(line: str) -> bool:
    return line.strip() in ("...", "…") or is_placeholder(line)


def _split_pieces(lines: Sequence[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    for line in lines:
        if _is_elision(line):
            pieces.append([])
        else:
            pieces[-1].append(line)
    return pieces


def _find_elision_depths(change: Replacement) -> set[tuple[int, int]]:
    """Return how far what `...` leaves out may move: as far as the `...` of both sides are apart."""
    before = [measure_indent(line) for line in change.before if _is_elision(line)]
    after = [measure_indent(line) for line in change.after if _is_elision(line)]
    return set(zip(before, after, strict=False))
