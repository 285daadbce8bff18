"""Which unit of a snippet is which unit of the file, among siblings: by name, by text, by likeness, in order.

Pairs that are sure (equal text, or the same kind and name, unique on both sides) are taken first and cut the rest into
gaps; inside a gap the alignment with the largest sum of likeness wins (Needleman and Wunsch, 1970).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process

from editor.lazy.edges import key
from editor.lazy.units import MARKER, Unit

# Of 1: what two units must have in common to be taken for each other.
_MIN_LIKENESS = 0.55
_MIN_RENAMED = 0.8
_RENAMED = 0.93
_KINDS = {"method": "function"}
_MAX_CELLS = 20_000
_MAX_TEXT = 2_000
_MIN_TELLING = 3
_MAX_ROWS_BACK = 8
_MAX_LINES_COMPARED = 400
_MAX_COLUMNS_BACK = 200
# What it costs to take a unit between two shown neighbours away.
_DROP_COST = 0.08
_MAX_DROP_COST = 0.4


_IMPORT = re.compile(r"\s*(?:import\b|from\s+\S+\s+import\b|use\s|using\s|#\s*include\b|require\b|const .*= require\()")
_TITLED = re.compile(r"\s*(?P<call>[\w.$]+)\s*\(\s*(?P<quote>[\"'`])(?P<title>.*?)(?P=quote)")
# Parts the call from its first string in the name of a unit such as `it("adds", ...)`.
_TITLE = "\0"


class Siblings:
    """The units of one level with what they are compared by; markers are no units to be paired."""

    def __init__(self, lines: Sequence[str], units: Sequence[Unit]) -> None:
        self.units = units
        self.heads = ["" if unit.is_marker else lines[unit.core].strip() for unit in units]
        self._lines = lines
        self._texts: dict[int, str] = {}
        self._names: dict[int, str] = {}

    def text(self, at: int) -> str:
        """Return a unit's lines from its core on, without indentation and blank lines."""
        if at not in self._texts:
            unit = self.units[at]
            stripped = (line.strip() for line in self._lines[unit.core : unit.end])
            self._texts[at] = "\n".join(line for line in stripped if line)
        return self._texts[at]

    def name(self, at: int) -> str:
        """Return the name of a definition, or what the first line is about; '' if that cannot be told."""
        if at not in self._names:
            titled = _TITLED.match(self.heads[at])
            guess = f"{titled['call']}{_TITLE}{titled['title']}" if titled else key(self.heads[at])
            self._names[at] = self.units[at].name or guess
        return self._names[at]

    def is_import(self, at: int) -> bool:
        """Tell whether a unit imports, includes or requires something."""
        return _IMPORT.match(self.heads[at]) is not None

    def definition(self, at: int) -> tuple[str, str] | None:
        """Return (kind, name) of a definition that the grammar knows; a method counts as a function."""
        unit = self.units[at]
        return (_KINDS.get(unit.kind, unit.kind), unit.name) if unit.kind else None


@dataclass(frozen=True, slots=True)
class Pairing:
    """Snippet index -> file index: `in_order` ascends on both sides, `moved` are sure pairs that would cross it."""

    in_order: dict[int, int]
    moved: dict[int, int]


def pair(file: Siblings, snippet: Siblings) -> Pairing:
    """Return which units of the snippet are which of the file."""
    definitions = _sure_pairs(file, snippet, lambda side, at: side.definition(at))
    taken = set(definitions.values())
    texts = _sure_pairs(file, snippet, lambda side, at: side.text(at))
    sure = {s: f for s, f in texts.items() if f not in taken} | definitions
    pairs = _ascending(sure)
    at_s = at_f = 0
    for s, f in [*sorted(pairs.items()), (len(snippet.units), len(file.units))]:
        pairs |= _aligned(file, snippet, range(at_f, f), range(at_s, s))
        at_s, at_f = s + 1, f + 1
    used = set(pairs.values())
    moved = {s: f for s, f in sure.items() if s not in pairs and f not in used}
    return Pairing(pairs, moved)


def strong_matches(file: Siblings, snippet: Siblings, *, definitions_only: bool = False) -> int:
    """Return how many units of the snippet have a sure counterpart: the same definition, or the same text."""
    definitions: set[tuple[str, str]] = set()
    heads: dict[str, list[int]] = defaultdict(list)
    for at in range(len(file.units)):
        heads[file.heads[at]].append(at)
        if (named := file.definition(at)) is not None:
            definitions.add(named)
    count = 0
    for at, unit in enumerate(snippet.units):
        if unit.is_marker or unit.continues:
            continue
        if snippet.definition(at) in definitions:
            count += 1
        elif not definitions_only and sum(map(str.isalnum, snippet.heads[at])) > _MIN_TELLING:
            count += any(file.text(other) == snippet.text(at) for other in heads.get(snippet.heads[at], ()))
    return count


def likeness(file: Siblings, f: int, snippet: Siblings, s: int) -> float:
    """Return how alike two units are, in [0, 1]."""
    one, other = file.units[f], snippet.units[s]
    if one.is_marker or other.is_marker or one.continues != other.continues:
        return 0.0
    if file.heads[f] == snippet.heads[s] and file.text(f) == snippet.text(s):
        return 1.0
    heads = fuzz.ratio(file.heads[f], snippet.heads[s]) / 100
    if one.continues:
        return heads
    name, sent_name = file.name(f), snippet.name(s)
    same_name = name != "" and name == sent_name
    if one.kind and other.kind:
        if same_name:
            return 0.98 if one.kind == other.kind else 0.9
        # Definitions with different names are different, if alike: a new test is a copy of its neighbour.
        renamed = one.kind == other.kind and _text_likeness(file, f, snippet, s) >= _RENAMED
        return 0.6 if renamed else 0.0
    if bool(one.kind) != bool(other.kind):
        return 0.5 + 0.45 * heads if same_name else 0.0
    both_named = bool(name and sent_name)
    if both_named and not same_name:
        imports = file.is_import(f) or snippet.is_import(s)
        if heads < _MIN_RENAMED or imports or (_TITLE in name and one.parts):
            return 0.0
    inner = _text_likeness(file, f, snippet, s)
    if same_name:
        return 0.5 + 0.2 * heads + 0.25 * inner
    return (0.8 if both_named else 0.95) * max(heads if not other.parts else 0.0, inner)


def _text_likeness(file: Siblings, f: int, snippet: Siblings, s: int) -> float:
    if snippet.units[s].elides:
        # What a marker leaves out says nothing: the share of the shown lines counts.
        shown = [line for line in snippet.text(s).split("\n") if line != MARKER]
        have = file.text(f).split("\n")
        return sum(_best_line(line, have) for line in shown) / max(1, len(shown))
    return fuzz.ratio(file.text(f)[:_MAX_TEXT], snippet.text(s)[:_MAX_TEXT]) / 100


def _best_line(line: str, have: Sequence[str]) -> float:
    if line in have:
        return 1.0
    if len(have) > _MAX_LINES_COMPARED:
        return 0.0
    found = process.extractOne(line, have, scorer=fuzz.ratio, score_cutoff=60)
    return 0.8 * found[1] / 100 if found else 0.0


def _sure_pairs(file: Siblings, snippet: Siblings, key: Callable[[Siblings, int], Hashable | None]) -> dict[int, int]:
    """Return the pairs whose key stands once on both sides."""
    in_file = _unique(file, key)
    in_snippet = _unique(snippet, key)
    return {s: in_file[wanted] for wanted, s in in_snippet.items() if wanted in in_file}


def _unique(side: Siblings, key: Callable[[Siblings, int], Hashable | None]) -> dict[Hashable, int]:
    keys = [None if unit.is_marker or unit.continues else key(side, at) for at, unit in enumerate(side.units)]
    counts = Counter(keys)
    return {wanted: at for at, wanted in enumerate(keys) if wanted is not None and counts[wanted] == 1}


def _ascending(pairs: dict[int, int]) -> dict[int, int]:
    """Return the largest part of the pairs that ascends on both sides (longest increasing subsequence)."""
    ordered = sorted(pairs.items())
    tails: list[int] = []
    tail_at: list[int] = []
    before: list[int] = []
    for at, (_, place) in enumerate(ordered):
        length = bisect_left(tails, place)
        before.append(tail_at[length - 1] if length else -1)
        tails[length : length + 1] = [place]
        tail_at[length : length + 1] = [at]
    kept: dict[int, int] = {}
    at = tail_at[-1] if tail_at else -1
    while at >= 0:
        kept[ordered[at][0]] = ordered[at][1]
        at = before[at]
    return kept


def _aligned(file: Siblings, snippet: Siblings, in_file: range, in_snippet: range) -> dict[int, int]:
    """Align what lies between two sure pairs; a gap too large for it stays unpaired."""
    rows = [s for s in in_snippet if not snippet.units[s].is_marker]
    if not rows or not in_file or len(in_file) * len(rows) > _MAX_CELLS:
        return {}
    offset = in_file.start
    # best[c] of a row: the largest sum of an alignment that ends with this row paired with column c.
    before: list[list[tuple[float, int, int]]] = []
    for r, s in enumerate(rows):
        row: list[tuple[float, int, int]] = []
        for f in in_file:
            like = likeness(file, f, snippet, s)
            if like < _MIN_LIKENESS:
                row.append((-1.0, -1, -1))
                continue
            link = _best_link(before, r, f - offset, _parted(snippet, rows, r))
            row.append((like - 0.5 + link[0], link[1], link[2]))
        before.append(row)
    total, r, c = max((row[c][0], -r, -c) for r, row in enumerate(before) for c in range(len(row)))
    pairs: dict[int, int] = {}
    r, c = -r, -c
    while total > 0 and r >= 0:
        pairs[rows[r]] = c + offset
        _, r, c = before[r][c]
    return dict(sorted(pairs.items()))


def _parted(snippet: Siblings, rows: Sequence[int], r: int) -> list[bool]:
    """Tell for each earlier row whether a marker stands between it and row `r`."""
    markers = [at for at, unit in enumerate(snippet.units) if unit.is_marker]
    return [any(rows[other] < at < rows[r] for at in markers) for other in range(r)]


def _best_link(
    before: Sequence[Sequence[tuple[float, int, int]]], r: int, c: int, parted: Sequence[bool]
) -> tuple[float, int, int]:
    """Return (sum, row, column) of the best alignment that a pair at (r, c) can go on with; lines dropped cost."""
    best = (0.0, -1, -1)
    for other in range(r - 1, max(-1, r - _MAX_ROWS_BACK), -1):
        for column in range(c - 1, max(-1, c - _MAX_COLUMNS_BACK), -1):
            total = before[other][column][0]
            if total <= best[0]:
                continue
            cost = 0.0 if parted[other] else min(_MAX_DROP_COST, _DROP_COST * (c - column - 1))
            if total - cost > best[0]:
                best = (total - cost, other, column)
    return best
