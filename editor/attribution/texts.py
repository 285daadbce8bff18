"""The snippet, the file and the result that one search aligns, and the band of line pairs it may use.

Blank lines are left out of all three.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from editor.attribution.instruction import PlaceText, RemovalText
from editor.attribution.snippet import SnippetItem, list_ancestor_keys, measure_level, read_items
from editor.attribution.statements import IMPORT, find_name, may_be_call, number_statements
from editor.definitions import Symbol
from editor.diff import LineOp, line_opcodes
from editor.execution import cache_results
from editor.syntax import Survey, survey
from editor.types import Sketch

if TYPE_CHECKING:
    import numpy as np


class SolidLine(NamedTuple):
    """A line that is not blank. `number` counts from 0, `key` is the text without indentation, `width` the depth.

    `above` are the blank lines above it.
    """

    number: int
    text: str
    key: str
    width: int
    above: tuple[str, ...]


def _split_lines(text: str, language: str | None, known: Mapping[str, SolidLine]) -> list[SolidLine]:
    """Return the solid lines of a text; `known` are lines of the file by their text."""
    found: list[SolidLine] = []
    above: list[str] = []
    for number, line in enumerate(text.split("\n")):
        like = known.get(line)
        key = like.key if like is not None else line.strip()
        if key:
            width = like.width if like is not None else measure_level(line, language)
            found.append(SolidLine(number, line, key, width, tuple(above)))
            above = []
        else:
            above.append(line)
    return found


class FileIndex:
    """The lines of a file and their statements, imports and definitions, shared by all searches in it."""

    def __init__(self, text: str, language: str | None) -> None:
        self.text, self.language = text, language
        self.lines = _split_lines(text, language, {})
        self.line_of = {line.text: line for line in self.lines}
        self.keys = [line.key for line in self.lines]
        self.counts = Counter(self.keys)
        self.places: dict[str, list[int]] = {}
        for at, key in enumerate(self.keys):
            self.places.setdefault(key, []).append(at)

    @cached_property
    def survey(self) -> Survey | None:
        return survey(self.text, self.language)

    @cached_property
    def statements(self) -> list[int]:
        return number_statements([line.text for line in self.lines])

    @cached_property
    def imports(self) -> list[int]:
        return [at for at, line in enumerate(self.lines) if IMPORT.match(line.text)]

    @cached_property
    def definitions(self) -> list[tuple[int, int, str]]:
        """Definitions of several lines, in order: the range of solid lines, and the name."""
        symbols = () if self.survey is None else self.survey.symbols
        found = {
            find_line_range(self.lines, symbol.name_line, symbol.end_line): symbol.name
            for symbol in symbols
            if symbol.end_line - symbol.name_line > 1
        }
        knows_methods = self.survey is not None and self.survey.has_symbols
        for at, line in enumerate(self.lines):
            name = None if knows_methods and may_be_call(line.text) else find_name(line.text)
            end = self._end_by_indent(at) if name else at
            if name and end > at + 1 and (at, end) not in found:
                found[at, end] = name
        return [(first, end, name) for (first, end), name in sorted(found.items())]

    @cached_property
    def definition_names(self) -> set[str]:
        return {name.rsplit(".", 1)[-1] for _, _, name in self.definitions}

    @cached_property
    def lone_symbols(self) -> list[Symbol]:
        """The definitions with a unique qualified name."""
        symbols = () if self.survey is None else self.survey.symbols
        counts = Counter(symbol.name for symbol in symbols)
        return [symbol for symbol in symbols if counts[symbol.name] == 1]

    def _end_by_indent(self, at: int) -> int:
        """Return the line after the block that a line opens, by indentation."""
        lines = self.lines
        width = lines[at].width
        end = at + 1
        while end < len(lines) and lines[end].width > width:
            end += 1
        return end + (end < len(lines) and lines[end].width == width and lines[end].key[0] in ")]}")


# The readings of one edit are judged one after the other.
_index_file = cache_results(2)(FileIndex)


@cache_results(2)
def _read_snippet(
    original: str, sketch: Sketch, language: str | None, instructions: tuple[str, ...]
) -> tuple[list[SnippetItem], RemovalText, PlaceText]:
    items, texts = read_items(sketch, _index_file(original, language).places, language)
    return items, RemovalText([*instructions, *texts]), PlaceText(instructions)


class SearchTexts:
    """The items of a snippet (`items`), the lines of its file (`old`) and of a result (`new`).

    `shown` are the keys of the lines that the snippet shows, `ops` align the file with the result.
    """

    def __init__(
        self, original: str, result: str, sketch: Sketch, language: str | None, instructions: Sequence[str]
    ) -> None:
        self.original, self.result, self.language = original, result, language
        self.file = _index_file(original, language)
        self.old, self.old_keys, self.places = self.file.lines, self.file.keys, self.file.places
        self.new = _split_lines(result, language, self.file.line_of)
        self.new_keys = [line.key for line in self.new]
        self.items, self.removal, self.place = _read_snippet(original, sketch, language, tuple(instructions))
        self.ops = line_opcodes(self.old_keys, self.new_keys)
        self.shown = {item.key for item in self.items if item.kind == "line"}

    @cached_property
    def new_places(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for at, key in enumerate(self.new_keys):
            found[key].append(at)
        return found

    @cached_property
    def ancestor_keys(self) -> list[frozenset[str]]:
        """For each line of the result, the keys of the lines that enclose it."""
        return list(list_ancestor_keys([(line.key, line.width) for line in self.new], self.language))

    @cached_property
    def surveys(self) -> tuple[Survey | None, Survey | None]:
        return self.file.survey, survey(self.result, self.language)

    def find_item_places(self, number: int) -> Sequence[int]:
        item = self.items[number]
        if item.elided is None:
            return self.new_places.get(item.key, ())
        return [at for at, key in enumerate(self.new_keys) if self.is_item(item, key)]

    def is_item(self, item: SnippetItem, key: str) -> bool:
        """Return whether a line is the one that an item shows; `(...)` in a header matches any parameters."""
        if item.key == key:
            return True
        if item.elided is None:
            return False
        name = find_name(item.key)
        return item.elided.fullmatch("".join(key.split())) is not None or (name is not None and name == find_name(key))

    def is_owned(self, at: int, new: int) -> bool:
        """Return whether a line of the result is in the block in which the snippet shows it."""
        parent = self.items[at].parent
        if parent < 0:
            return True
        owner = self.items[parent]
        inside = self.ancestor_keys[new]
        if owner.key in inside or (owner.elided is not None and any(self.is_item(owner, key) for key in inside)):
            return True
        # Text of a string at column 0 hides the enclosing lines from a reading by indentation; the grammar sees them.
        number = self.new[new].number
        return any(
            symbol.name_line < number < symbol.end_line and self.is_item(owner, self.find_new_key(symbol.name_line))
            for symbol in (self.surveys[1].symbols if self.surveys[1] is not None else ())
        )

    def find_new_key(self, number: int) -> str:
        at = bisect_left(self._new_numbers, number)
        return self.new_keys[at] if at < len(self.new) else ""

    @cached_property
    def _new_numbers(self) -> list[int]:
        return [line.number for line in self.new]


def find_line_range(lines: Sequence[SolidLine], first: int, end: int) -> tuple[int, int]:
    """Return the range of solid lines for a range of all lines."""
    return bisect_left(lines, first, key=lambda line: line.number), bisect_left(
        lines, end, key=lambda line: line.number
    )


def is_punctuation(key: str) -> bool:
    """Return whether a line has neither a letter nor a digit."""
    return not any(map(str.isalnum, key))


MAX_WINDOW_CELLS = 16_000_000
"""Pairs of lines around one change (file times result); beyond it no reading is tried."""

_SLACK = 4
_MARGIN = 6
_MAX_SLIDE = 200


class AlignmentBand:
    """The pairs of lines of a file and a result through which a path may go: those near a shortest difference.

    Outside of windows around the changes only equal lines are paired. Inside, a pair counts if an alignment through it
    keeps at most a few lines less than the best one (longest common subsequences from both sides).
    """

    def __init__(self, old: Sequence[str], new: Sequence[str], ops: Sequence[LineOp]) -> None:
        import numpy as np  # takes 0.1 s, and few edits need it

        self._diagonal = np.full(len(new) + 1, -1, np.int64)
        for op in ops:
            if op.equal:
                size = op.a_end - op.a_start
                self._diagonal[op.b_start : op.b_end + 1] = np.arange(op.a_start, op.a_start + size + 1)
        windows = _find_windows(old, new, ops)
        self.is_too_large = any((a2 - a1 + 1) * (b2 - b1 + 1) > MAX_WINDOW_CELLS for a1, a2, b1, b2 in windows)
        self._window_of = np.full(len(new) + 1, -1, np.int64)
        self._windows = windows
        self._tables: list[bytes] = []
        if self.is_too_large:
            return
        for number, (a1, a2, b1, b2) in enumerate(windows):
            self._window_of[b1 : b2 + 1] = number
            self._tables.append(_mark_near_best(old[a1:a2], new[b1:b2]).tobytes())
        self._starts = [window[2] for window in windows]
        self._diagonals: list[int] = self._diagonal.tolist()
        self._numbers: list[int] = self._window_of.tolist()

    def has(self, old: int, new: int) -> bool:
        """Return whether a path may go through a pair of lines."""
        number = self._numbers[new]
        if number < 0:
            return self._diagonals[new] == old
        a1, a2, b1, b2 = self._windows[number]
        return a1 <= old <= a2 and self._tables[number][(old - a1) * (b2 - b1 + 1) + new - b1] > 0

    def is_in_window(self, new: int) -> bool:
        """Return whether a line of the result is in a window around a change."""
        return self._numbers[new] >= 0

    def find_next_window(self, new: int) -> int:
        """Return the first line of the result from `new` on that is in a window, or the number of lines."""
        row = bisect_left(self._starts, new)
        return self._starts[row] if row < len(self._starts) else len(self._numbers) - 1

    def find_twin(self, new: int) -> int:
        """Return the line of the file that is paired with a line of the result outside of windows, -1 for none."""
        return self._diagonals[new]

    def find_last_twin(self, new: int) -> int:
        """Return the last line of the file that may be paired with a line of the result."""
        number = self._numbers[new]
        return self._windows[number][1] if number >= 0 else int(self._diagonals[new])


def _find_windows(old: Sequence[str], new: Sequence[str], ops: Sequence[LineOp]) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    for op in ops:
        if op.equal:
            continue
        up, down = _count_slides(old, op.a_start, op.a_end), _count_slides(new, op.b_start, op.b_end)
        above, below = max(up[0], down[0]) + _MARGIN, max(up[1], down[1]) + _MARGIN
        above = min(above, op.a_start, op.b_start)
        below = min(below, len(old) - op.a_end, len(new) - op.b_end)
        one = (op.a_start - above, op.a_end + below, op.b_start - above, op.b_end + below)
        while found and (found[-1][1] >= one[0] or found[-1][3] >= one[2]):
            last = found.pop()
            one = (min(last[0], one[0]), max(last[1], one[1]), min(last[2], one[2]), max(last[3], one[3]))
        found.append(one)
    return found


def _count_slides(lines: Sequence[str], start: int, end: int) -> tuple[int, int]:
    """Return by how many lines a run could be moved up and down with the same text."""
    if start == end:
        return 0, 0
    up = down = 0
    while up < _MAX_SLIDE and start - up > 0 and lines[start - up - 1] == lines[end - up - 1]:
        up += 1
    while down < _MAX_SLIDE and end + down < len(lines) and lines[start + down] == lines[end + down]:
        down += 1
    return up, down


def _mark_near_best(old: Sequence[str], new: Sequence[str]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    import numpy as np

    ids: dict[str, int] = {}
    left = np.array([ids.setdefault(key, len(ids)) for key in old], np.int64)
    right = np.array([ids.setdefault(key, len(ids)) for key in new], np.int64)
    equal = left[:, None] == right
    # The longest common subsequences of all suffixes, and of all prefixes: those of the suffixes of the reversed texts.
    behind, before = _compute_lcs_lengths(np.stack([equal, equal[::-1, ::-1]], axis=1))
    near: np.ndarray[tuple[int, int], np.dtype[np.bool_]] = (before[::-1, ::-1] + behind) >= behind[0, 0] - _SLACK
    return near


def _compute_lcs_lengths(
    equal: np.ndarray[tuple[int, int, int], np.dtype[np.bool_]],
) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
    """Return the lengths of the longest common subsequences of all ends of two sequences, for several pairs at once.

    `equal` has the shape [lines of the first sequence, pairs, lines of the second sequence].
    """
    import numpy as np

    size, many, width = equal.shape
    table = np.zeros((many, size + 1, width + 1), np.int32)
    for at in range(size - 1, -1, -1):
        below = table[:, at + 1]
        row = np.maximum(below[:, :-1], below[:, 1:] + equal[at])
        table[:, at, :-1] = np.maximum.accumulate(row[:, ::-1], axis=1)[:, ::-1]
    return table
