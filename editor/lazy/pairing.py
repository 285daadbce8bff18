"""Which unit of a snippet is which unit of the file, among siblings: by name, by text, by likeness, in order.

Pairs that are sure (equal text, or the same kind and name, unique on both sides) are taken first and cut the rest into
gaps; inside a gap the alignment with the largest sum of likeness wins (Needleman and Wunsch, 1970).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from editor.lazy.likeness import likeness
from editor.lazy.siblings import Siblings

# Of 1: what two units must have in common to be taken for each other.
_MIN_LIKENESS = 0.55
_MAX_CELLS = 20_000
_MAX_ROWS_BACK = 8
_MAX_COLUMNS_BACK = 200
# What it costs to take a unit between two shown neighbours away.
_DROP_COST = 0.08
_MAX_DROP_COST = 0.4

_Link = tuple[float, int, int]


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
    matched: set[int] = set()
    texts: dict[str, set[str]] = defaultdict(set)
    for at in range(len(file.units)):
        matched.update(snippet.shows_definition(file.definition(at)))
        if not definitions_only and snippet.shows_head(file.heads[at]):
            texts[file.heads[at]].add(file.text(at))
    for head, known in texts.items():
        matched.update(at for at in snippet.shows_head(head) if snippet.text(at) in known)
    return len(matched)


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
    table = _alignments(file, snippet, in_file, rows)
    total, r, c = max((row[c][0], -r, -c) for r, row in enumerate(table) for c in range(len(row)))
    pairs: dict[int, int] = {}
    r, c = -r, -c
    while total > 0 and r >= 0:
        pairs[rows[r]] = in_file[c]
        _, r, c = table[r][c]
    return dict(sorted(pairs.items()))


def _alignments(file: Siblings, snippet: Siblings, in_file: range, rows: Sequence[int]) -> list[list[_Link]]:
    """Return (sum, row and column of the pair before) of the best alignment that ends with each pair."""
    table: list[list[_Link]] = []
    num_above = [0, *accumulate(unit.is_marker for unit in snippet.units)]
    for r, s in enumerate(rows):
        # Tells for the rows that are looked back at whether a marker stands between.
        parted = {other: num_above[rows[other]] < num_above[s] for other in range(max(0, r - _MAX_ROWS_BACK), r)}
        row: list[_Link] = []
        for c, f in enumerate(in_file):
            like = likeness(file, f, snippet, s)
            if like < _MIN_LIKENESS:
                row.append((-1.0, -1, -1))
                continue
            total, before_r, before_c = _best_link(table, r, c, parted)
            row.append((like - 0.5 + total, before_r, before_c))
        table.append(row)
    return table


def _best_link(table: Sequence[Sequence[_Link]], r: int, c: int, parted: Mapping[int, bool]) -> _Link:
    """Return (sum, row, column) of the best alignment that a pair at (r, c) can go on with; lines dropped cost."""
    best = (0.0, -1, -1)
    for other in range(r - 1, max(-1, r - _MAX_ROWS_BACK), -1):
        for column in range(c - 1, max(-1, c - _MAX_COLUMNS_BACK), -1):
            total = table[other][column][0]
            if total <= best[0]:
                continue
            cost = 0.0 if parted[other] else min(_MAX_DROP_COST, _DROP_COST * (c - column - 1))
            if total - cost > best[0]:
                best = (total - cost, other, column)
    return best
