"""Checks of what a merge removed from a file, and whether the edit asked for it.

A SEARCH/REPLACE edit shows the lines that it searches. A sketch shows a removal where two of its neighbouring literal
lines are neighbours in the result: the lines between them were meant to be removed. Lines that a placeholder stands
for, or that are before the first or after the last line of a sketch, are never shown to be removed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile

from rapidfuzz import fuzz

from editor.definitions import Symbol
from editor.diff import LineOp, line_opcodes
from editor.errors import NOT_APPLICABLE, TooMuchWorkError, format_list
from editor.match.ladder import KeyedLines, measure_width
from editor.required_lines import iter_solid_lines
from editor.syntax import Survey
from editor.types import Check, ParsedEdit, Sketch, Substitutions

# A rewrite that ends a sketch may be this many times shorter than the lines that it replaces.
_MAX_REWRITE = 2
_MAX_SLIDE = 100


@dataclass(frozen=True, slots=True)
class Removal:
    """Lines [start, end) of the original that are removed, and the lines that replace them (`instead`).

    `unshown` are those that the edit does not show to be removed; `is_shown` says that there are none.
    """

    start: int
    end: int
    lines: tuple[str, ...]
    instead: tuple[str, ...]
    unshown: tuple[str, ...]
    at_end: bool

    @property
    def is_shown(self) -> bool:
        """Return whether the edit accounts for all of it."""
        return not any(line.strip() for line in self.unshown)


def find_removals(original: Sequence[str], merged: Sequence[str], edit: ParsedEdit) -> tuple[Removal, ...]:
    """Return the removals in text order. A line that was only re-indented is not removed."""
    old, new = [line.strip() for line in original], [line.strip() for line in merged]
    ops = [op for op in line_opcodes(old, new) if not op.equal and any(old[op.a_start : op.a_end])]
    last = max((at for at, line in enumerate(old) if line), default=-1)
    unshown = _find_unshown_of_sketch(original, new, ops, edit.changes) if isinstance(edit.changes, Sketch) else None
    if unshown is None:
        unshown = _find_unshown_of_blocks(old, ops, edit)
    return tuple(
        Removal(
            op.a_start,
            op.a_end,
            tuple(original[op.a_start : op.a_end]),
            tuple(merged[op.b_start : op.b_end]),
            lines,
            op.a_start <= last < op.a_end,
        )
        for op, lines in zip(ops, unshown, strict=True)
    )


def _find_unshown_of_blocks(old: list[str], ops: Sequence[LineOp], edit: ParsedEdit) -> list[tuple[str, ...]]:
    """Return the unshown lines of each removal: every line of a SEARCH part accounts for one removed line."""
    named = Counter(line.strip() for line in edit.old_lines)
    unshown: list[tuple[str, ...]] = []
    for op in ops:
        left: list[str] = []
        for line in old[op.a_start : op.a_end]:
            if named[line] > 0:
                named[line] -= 1
            else:
                left.append(line)
        unshown.append(tuple(left))
    return unshown


def _find_unshown_of_sketch(
    original: Sequence[str], new: list[str], ops: Sequence[LineOp], sketch: Sketch
) -> list[tuple[str, ...]]:
    shown = _ShownSeams(original, [line.strip() for line in original], new, _find_shown_seams(new, sketch), sketch)
    return [() if shown.contains(op) else tuple(original[op.a_start : op.a_end]) for op in ops]


def _find_shown_seams(new: list[str], sketch: Sketch) -> frozenset[int]:
    """Return the seams that the sketch shows: `at` is the seam above line `at` of the result.

    Blank lines are skipped, as models add and drop them. Blocks beyond the bound of places show no seam.
    """
    solid = [at for at, line in enumerate(new) if line]
    found = KeyedLines([new[at] for at in solid])
    seams: set[int] = set()
    blocks = (tuple(line.strip() for line in block if line.strip()) for block in sketch.blocks)
    with suppress(TooMuchWorkError):
        for literal in dict.fromkeys(block for block in blocks if len(block) > 1):
            for place in _find_neighbours(literal, found):
                seams.update(range(solid[place] + 1, solid[place + 1] + 1))
    return frozenset(seams)


def _find_neighbours(literal: Sequence[str], found: KeyedLines) -> Iterator[int]:
    """Yield the places where two lines of a block are neighbours, whether the block is contiguous or not."""
    whole = found.find_starts(literal)
    if whole:
        # An alignment alone would scatter closing brackets over the file.
        reached = 0
        for start in whole:
            yield from range(max(start, reached), start + len(literal) - 1)
            reached = start + len(literal) - 1
        return
    for op in line_opcodes(literal, found.keys):
        if op.equal:
            yield from range(op.b_start, op.b_end - 1)


@dataclass(frozen=True, slots=True)
class _ShownSeams:
    """The changes that a sketch shows; `old` and `new` are the stripped lines of the original and the result."""

    original: Sequence[str]
    old: list[str]
    new: list[str]
    seams: frozenset[int]
    sketch: Sketch

    def contains(self, op: LineOp) -> bool:
        """Return whether the sketch shows a whole replacement: all seams around and within the new lines."""
        seams, new, sketch = self.seams, self.new, self.sketch
        if not all(at in seams for at in range(op.b_start + 1, op.b_end)):
            return False
        above, below = op.b_start in seams, op.b_end in seams
        if above and below:
            return op.b_start < op.b_end or self._contains_cut(op)
        # Where the sketch and the result begin, or end, together, that border is shown as well, but only for rewritten
        # lines: a careless snippet ends without a placeholder although the rest of the file should stay.
        rewritten = sum(map(bool, self.old[op.a_start : op.a_end])) <= _MAX_REWRITE * sum(
            map(bool, new[op.b_start : op.b_end])
        )
        first = not sketch.opens_elided and not any(islice(new, op.b_start))
        last = not sketch.closes_elided and not any(islice(reversed(new), len(new) - op.b_end))
        return rewritten and (above or first) and (below or last)

    def _contains_cut(self, op: LineOp) -> bool:
        """Return whether the sketch shows a deletion, cut where a person would cut it.

        Where two methods end alike, an alignment may drop the end of the first and the head of the second. So a
        deletion is moved to where it begins with the least indented line that is not blank and not a closing bracket,
        as in git's indent heuristic (Michael Haggerty, 2016), which also slides no further than 100 lines.
        """
        old = self.old
        down = 0
        while down < _MAX_SLIDE and op.a_end + down < len(old) and old[op.a_start + down] == old[op.a_end + down]:
            down += 1
        up = 0
        while up < _MAX_SLIDE and op.a_start - up > 0 and old[op.a_start - up - 1] == old[op.a_end - up - 1]:
            up += 1
        ranks = {slide: _rank_line(self.original[op.a_start + slide]) for slide in range(-up, down + 1)}
        best = min(ranks.values())
        return all(op.b_start + slide in self.seams for slide, rank in ranks.items() if rank == best)


def _rank_line(line: str) -> tuple[bool, int]:
    return not any(char.isalnum() for char in line), measure_width(line)


MAX_REMOVED_SHARE = 0.6
MIN_LINES_FOR_SHARE = 10
MAX_LOST_SHARE = 0.5
"""The share of its definitions that a file which was sent whole may lose."""

_TAIL_LINES = 3
_TAIL_SHARE = 0.25
_MIN_LIKENESS = 60
_WORD = re.compile(r"[\w$]+")
_FEW_TEXTS = 20
_MAX_TEXT_CHARS = 200
_MAX_PIECE_CHARS = 30_000
_SAID = re.compile(r"remov|delet|renam", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Losses:
    """The input of the checks of removals.

    `as_sent` says that the edit is the whole result, `worse` that it parses worse, `is_accounted` that a legal reading
    of the edit leads to the result.
    """

    original: Sequence[str]
    merged: Sequence[str]
    edit: ParsedEdit
    gone: Sequence[Removal]
    before: Survey | None
    after: Survey | None
    as_sent: bool
    worse: bool
    is_accounted: bool

    @property
    def is_whole_file(self) -> bool:
        """Return whether the sender declared the edit to be the whole file."""
        return isinstance(self.edit.changes, Sketch) and self.edit.changes.complete

    @property
    def is_small(self) -> bool:
        """Return whether the file is too small for a share of its lines to mean anything."""
        return self.num_lines <= MIN_LINES_FOR_SHARE

    @property
    def num_lines(self) -> int:
        """The number of lines of the original that are not blank."""
        return sum(1 for line in self.original if line and not line.isspace())


def drop_shown_removals(gone: Sequence[Removal], original: Sequence[str], edit: ParsedEdit) -> tuple[Removal, ...]:
    """Return the removals without the `unshown` lines that the edit removes without quoting them whole.

    A substitution shows every line that holds a line of its old text; a range of lines shows the lines at its numbers.
    """
    if isinstance(edit.changes, Sketch):
        return tuple(gone)
    if isinstance(edit.changes, Substitutions):
        shown = _TextSet(text.strip() for item in edit.changes.items for text in item.old.split("\n"))
        left = [tuple(line for line in part.unshown if not shown.is_in(line)) for part in gone]
    else:
        hints = [change.hint for change in edit.changes if change.hint.num_unseen and change.hint.line is not None]
        named = Counter(
            line.strip() for hint in hints for line in original[hint.line or 0 :][: hint.num_unseen] if line.strip()
        )
        left = [tuple(_drop_named(part.unshown, named)) for part in gone]
    return tuple(replace(part, unshown=unshown) for part, unshown in zip(gone, left, strict=True))


class _TextSet:
    """Finds texts in many lines; of many texts only the first 200 characters are looked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._sorted: list[str] = []
        found = {text for text in texts if text}
        for text in sorted({text[:_MAX_TEXT_CHARS] for text in found} if len(found) > _FEW_TEXTS else found):
            # A text that begins with another one occurs only where that one does.
            if not self._sorted or not text.startswith(self._sorted[-1]):
                self._sorted.append(text)
        self._first = {text[0] for text in self._sorted}

    def is_in(self, line: str) -> bool:
        """Return whether any of the texts is in a line."""
        if len(self._sorted) <= _FEW_TEXTS:
            return any(text in line for text in self._sorted)
        places = (at for at, char in enumerate(line) if char in self._first)
        return any(self._is_at(line, at) for at in places)

    def _is_at(self, line: str, at: int) -> bool:
        """Only the last text that sorts before the rest of the line can be a prefix of it."""
        row = bisect_right(self._sorted, line[at : at + _MAX_TEXT_CHARS])
        return row > 0 and line.startswith(self._sorted[row - 1], at)


def _drop_named(lines: Sequence[str], named: Counter[str]) -> Iterator[str]:
    for line in lines:
        if named[line.strip()] > 0:
            named[line.strip()] -= 1
        else:
            yield line


def check_symbols(losses: Losses) -> Check:
    """Check that no definition occurs less often than before unless the edit removes it."""
    before, after = losses.before, losses.after
    if before is None or after is None:
        return Check("symbols_kept", True, f"{NOT_APPLICABLE}: no grammar for this text, or it is too large")
    if losses.is_accounted and not losses.is_whole_file:
        # A reading of a snippet removes a definition only if the snippet names or replaces it.
        return Check("symbols_kept", True, "the edit accounts for what is gone")
    if not before.has_symbols or not after.has_symbols:
        return Check("symbols_kept", True, f"{NOT_APPLICABLE}: too many definitions to compare")
    lost = list(_find_lost_symbols(before, after))
    if losses.is_whole_file and len(lost) <= MAX_LOST_SHARE * len(before.symbols):
        return Check("symbols_kept", True, f"{NOT_APPLICABLE}: the file was sent whole")
    meant = _IntendedRemovals(losses)
    lost = [symbol for symbol in lost if not meant.includes(symbol)]
    names = list(dict.fromkeys(symbol.name for symbol in lost))
    return Check(
        "symbols_kept", not lost, format_list("lost definitions", names) or f"{len(before.symbols)} definitions"
    )


def _find_lost_symbols(before: Survey, after: Survey) -> Iterator[Symbol]:
    """Yield the definitions that occur less often than before; under a renamed parent they are not lost."""
    stood = Counter(symbol.name for symbol in before.symbols)
    stands = Counter(symbol.name for symbol in after.symbols)
    left, gained = stood - stands, stands - stood
    in_new, in_old = Counter[str](), Counter[str]()
    for symbol in after.symbols:
        if symbol.name in gained:
            scope = _get_scope(symbol)
            (in_new if not scope or scope in gained else in_old)[symbol.simple_name] += 1
    for symbol in before.symbols:
        if left[symbol.name] <= 0:
            continue
        left[symbol.name] -= 1
        scope, name = _get_scope(symbol), symbol.simple_name
        if in_old[name] > 0 and (not scope or scope in left):
            in_old[name] -= 1
        elif in_new[name] > 0:
            in_new[name] -= 1
        else:
            yield symbol


def _get_scope(symbol: Symbol) -> str:
    return symbol.name.removesuffix(symbol.simple_name).removesuffix(".")


class _IntendedRemovals:
    """Decides which definitions an edit removes: it shows the place, rewrites it, or says so."""

    def __init__(self, losses: Losses) -> None:
        self._edit = losses.edit
        self._gone = losses.gone
        self._ends = [part.end for part in losses.gone]
        is_sketch = isinstance(losses.edit.changes, Sketch)
        lines = filter(_SAID.search, losses.edit.new_lines) if is_sketch else losses.edit.old_lines
        self._said = "\n".join(lines)
        self._words = frozenset(_WORD.findall(self._said))
        self._rewrites: dict[int, bool] = {}

    def includes(self, symbol: Symbol) -> bool:
        if self._is_named(symbol.simple_name):
            return True
        at = list(self._list_removals(symbol))
        if not isinstance(self._edit.changes, Sketch):
            headed = [part for part in at if part.start <= symbol.name_line < part.end]
            return bool(headed) and all(part.is_shown for part in headed)
        return bool(at) and all(part.is_shown or self._is_rewrite(part) for part in at)

    def _is_named(self, name: str) -> bool:
        if _WORD.fullmatch(name):
            return name in self._words
        return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", self._said) is not None

    def _list_removals(self, symbol: Symbol) -> Iterator[Removal]:
        first = bisect_right(self._ends, symbol.first_line)
        return takewhile(lambda part: part.start < symbol.end_line, islice(self._gone, first, None))

    def _is_rewrite(self, part: Removal) -> bool:
        if part.start not in self._rewrites:
            self._rewrites[part.start] = _is_rewrite(part)
        return self._rewrites[part.start]


def _is_rewrite(removal: Removal) -> bool:
    """Return whether the new lines are similar to the removed ones: a renamed function keeps its body."""
    return bool(removal.instead) and _measure_likeness(removal.lines, removal.instead) >= _MIN_LIKENESS


def _measure_likeness(old: Sequence[str], new: Sequence[str]) -> float:
    """Return the similarity of two texts in per cent; long texts piece by piece, as it takes quadratic time."""
    gone, instead = "\n".join(old), "\n".join(new)
    num_pieces = 1 + max(len(gone), len(instead)) // _MAX_PIECE_CHARS
    return sum(map(fuzz.ratio, _cut_pieces(gone, num_pieces), _cut_pieces(instead, num_pieces))) / num_pieces


def _cut_pieces(text: str, num_pieces: int) -> list[str]:
    cuts = [at * len(text) // num_pieces for at in range(num_pieces + 1)]
    return [text[start:end] for start, end in pairwise(cuts)]


def check_removed_lines(losses: Losses) -> Check:
    """Check that the share of the file that is removed without the edit showing it is below a limit."""
    total = losses.num_lines
    removed = sum(_count_solid(part.unshown) for part in losses.gone)
    changes = losses.edit.changes
    if isinstance(changes, Sketch) and not changes.elides:
        # Without placeholders everything is "shown" to go; the file must at least not shrink that much.
        removed = sum(max(0, _count_solid(part.lines) - _count_solid(part.instead)) for part in losses.gone)
    ok = total <= MIN_LINES_FOR_SHARE or removed <= MAX_REMOVED_SHARE * total
    return Check("lines_removed", ok, f"{removed} of {total} lines removed without the edit showing it")


def _count_solid(lines: Sequence[str]) -> int:
    return sum(1 for _ in iter_solid_lines(lines))


def check_elided_lines(losses: Losses) -> Check:
    """Check that no line that a placeholder stands for is removed: small models tend to drop such lines."""
    if not isinstance(losses.edit.changes, Sketch) or not losses.edit.changes.elides:
        return Check("elided_lines_kept", True, f"{NOT_APPLICABLE}: the edit has no placeholder")
    if losses.is_accounted:
        return Check("elided_lines_kept", True, "the edit accounts for what is gone")
    dropped = [
        line
        for part in losses.gone
        if not any(iter_solid_lines(part.instead))
        for line in iter_solid_lines(part.unshown)
    ]
    return Check("elided_lines_kept", not dropped, format_list("dropped lines", dropped) or "all stand")


def check_tail(losses: Losses, truncated: bool) -> Check:
    """Check that the end of the file, or all of it, is not removed without the edit showing it."""
    if truncated:
        return Check("truncated_tail", False, "generation stopped before the end of the file")
    if not any(map(str.strip, losses.merged)) and any(part.unshown for part in losses.gone):
        return Check("truncated_tail", False, "the file is empty now")
    if (
        losses.is_accounted
        and isinstance(losses.edit.changes, Sketch)
        and any(map(_SAID.search, losses.edit.new_lines))
    ):
        # Of two blocks that end alike the last may be lost unseen: attribution is trusted only if the snippet says so.
        return Check("truncated_tail", True, "the edit accounts for what is gone, and says that lines go")
    if losses.is_small and losses.as_sent:
        return Check("truncated_tail", True, f"{NOT_APPLICABLE}: a small file, sent whole")
    lost = max((_count_lost_tail(part) for part in losses.gone), default=0)
    if losses.is_whole_file and not losses.worse and lost < _TAIL_SHARE * losses.num_lines:
        lost = 0
    detail = f"the last {lost} lines are gone" if lost else "the end of the file stands"
    return Check("truncated_tail", not lost, detail)


def _count_lost_tail(removal: Removal) -> int:
    """Return how many lines of the end are removed for few new ones; 0 if too few to mean anything."""
    if not removal.at_end or removal.is_shown or _is_rewrite(removal):
        return 0
    lost = _count_solid(removal.unshown)
    return lost if lost >= _TAIL_LINES + 2 * _count_solid(removal.instead) else 0
