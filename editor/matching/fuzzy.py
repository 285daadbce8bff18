"""The last rung: places that are much like the lines looked for. It proposes readings, and never decides.

A reading keeps the file: only what the edit changes between its old and its new lines is carried to the place, as in a
three-way merge whose base are the old lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from editor.alignment import LineOp, line_opcodes
from editor.blocks.splices import Option, Splice
from editor.matching.indentation import Mapping, Shift, mapping
from editor.matching.index import LineIndex, stripped
from editor.matching.nearest import Near, nearest_places
from editor.types import Replacement

_MIN_LIKENESS = 75.0
# Places less than this behind the best one are as likely.
_MARGIN = 5.0
_MAX_PLACES = 3


def readings(index: LineIndex, change: Replacement) -> tuple[tuple[Option, ...], Near | None]:
    """Return the likely readings of a change that stands nowhere, and the nearest place of all (likely or not)."""
    near = nearest_places(index, change.before, _MAX_PLACES)
    if not near or near[0].likeness < _MIN_LIKENESS:
        return (), near[0] if near else None
    options: list[Option] = []
    for place in near:
        if place.likeness >= max(_MIN_LIKENESS, near[0].likeness - _MARGIN):
            found = index.lines[place.start : place.end]
            splice = Splice(place.start, place.end, tuple(_carried(found, change)), "fuzzy")
            why = f"SEARCH taken at {splice.where}, {int(place.likeness)} % alike"
            options.append(Option(splice, place.likeness / 100, why))
    return tuple(option for option in options if list(option.splice.lines) != _span(index, option)), near[0]


def _span(index: LineIndex, option: Option) -> list[str]:
    return list(index.lines[option.splice.start : option.splice.end])


def _carried(found: Sequence[str], change: Replacement) -> list[str]:
    """Return the found lines with what `after` changes in `before`; what both changed is taken from `after`."""
    drift = line_opcodes([stripped(line) for line in change.before], [stripped(line) for line in found])
    shift = _shift(found, change.before, drift)
    carried: list[str] = []
    for op in line_opcodes(change.before, change.after):
        if op.equal:
            carried += found[_at(drift, op.a_start, len(found)) : _at(drift, op.a_end, len(found))]
            continue
        for line in change.after[op.b_start : op.b_end]:
            moved = shift.apply(line)
            carried.append(line if moved is None else moved)
    return carried


def _at(drift: Sequence[LineOp], row: int, num_found: int) -> int:
    """Return which line of the place belongs to a line of `before`."""
    for op in drift:
        if row < op.a_end:
            return min(op.b_end, op.b_start + max(0, row - op.a_start))
    return num_found


def _shift(found: Sequence[str], before: Sequence[str], drift: Sequence[LineOp]) -> Mapping:
    rows = [
        (found[op.b_start + i], before[op.a_start + i])
        for op in drift
        if op.equal
        for i in range(op.a_end - op.a_start)
        if before[op.a_start + i].strip()
    ]
    return mapping([line for line, _ in rows], [line for _, line in rows]) or Shift()
