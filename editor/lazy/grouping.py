"""Where the parts of a snippet belong whose lines stand at different depths: which level of the file is meant.

A snippet may show a method without its class, or a method and then a function: each run of units with one indentation
is looked for among the levels of the file by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from rapidfuzz import fuzz, process

from editor.lazy.pairing import strong_matches
from editor.lazy.siblings import Siblings
from editor.lazy.units import Unit

# Per cent of rapidfuzz's ratio.
_MIN_HEAD_LIKENESS = 60
# A first line of the snippet is compared with all of the file's: so many pairs, and the other lines are not asked.
_MAX_HEADS_COMPARED = 500_000
_Level = tuple[Sequence[Unit], int, int]


def groups(sent: Sequence[Unit]) -> Iterator[tuple[Unit, ...]]:
    """Yield the runs of units with one indentation, each with the markers beside it."""
    widths = {unit.width for unit in sent if not unit.is_marker}
    if len(widths) <= 1:
        yield tuple(sent)
        return
    solid = [at for at, unit in enumerate(sent) if not unit.is_marker]
    for _, run in groupby(solid, key=lambda at: sent[at].width):
        places = list(run)
        first, last = places[0], places[-1] + 1
        yield tuple(sent[first - (first > 0) : last + (last < len(sent))])


def level_for(lines: list[str], units: Sequence[Unit], snippet: list[str], group: Sequence[Unit]) -> _Level | None:
    """Return the siblings of the file among which a group belongs, and the lines that they take; None if none do."""
    shown = Siblings(snippet, group)
    width = next((unit.width for unit in group if not unit.is_marker), 0)
    top: _Level = (units, 0, len(lines))
    if width == 0 and strong_matches(Siblings(lines, units), shown):
        return top
    levels = [(unit.parts, unit.core + 1, unit.end) for unit in _nested(units)]
    best, chosen = 0, top
    for level in levels:
        found = strong_matches(Siblings(lines, level[0]), shown, definitions_only=level[0][0].width != width)
        if found > best:
            best, chosen = found, level
    if best or width == 0:
        return chosen
    fitting = [level for level in levels if level[0][0].width == width]
    return fitting[0] if len(fitting) == 1 else _most_like(lines, fitting, shown)


def _most_like(lines: Sequence[str], levels: Sequence[_Level], shown: Siblings) -> _Level | None:
    """Return the level with the line most like one of a group; None if none is like any."""
    heads = [(lines[unit.core].strip(), number) for number, level in enumerate(levels) for unit in level[0]]
    texts = [head for head, _ in heads]
    best, chosen = float(_MIN_HEAD_LIKENESS), None
    solid = (at for at, unit in enumerate(shown.units) if not unit.is_marker and not unit.continues)
    for at in islice(solid, _MAX_HEADS_COMPARED // max(1, len(heads))):
        found = process.extractOne(shown.heads[at], texts, scorer=fuzz.ratio, score_cutoff=best)
        if found is not None and (found[1] > best or chosen is None):
            best, chosen = found[1], levels[heads[found[2]][1]]
    return chosen


def _nested(units: Sequence[Unit]) -> Iterator[Unit]:
    """Yield all units that have parts, outer ones first."""
    for unit in units:
        if unit.parts:
            yield unit
            yield from _nested(unit.parts)
