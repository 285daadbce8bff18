"""Which lines the parts of an edit may touch: by the readings of the edit, and by where each part belongs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from editor.alignment import line_opcodes
from editor.required import solid
from editor.scope.parts import Change, Part, hull
from editor.scope.splicing import lines_of
from editor.scope.types import Span

Touched = tuple[Span, frozenset[int]]
"""Lines that may be touched, and the numbers of the parts that may do it."""


def touched(lines: Sequence[str], parts: Sequence[Part], readings: Sequence[str], *, certain: bool) -> list[Touched]:
    """Return what may be touched, one hull for all parts where it cannot be told whose a change is; nothing if unknown.

    `certain` says that the one reading is the result, be it the file as it is.
    """
    told = [assign(change, parts) for change in _changes(lines, readings)]
    spans = [part.touches(certain=certain) for part in parts]
    if not readings and not all(part.is_sure for part in parts):
        return []
    if not certain and any(span is None and not part.is_context for span, part in zip(spans, parts, strict=True)):
        return []
    known = [(span, frozenset([number])) for number, span in enumerate(spans) if span is not None]
    if known and all(told):
        return known
    if not known and not certain:
        return []
    # Where nothing is to change, one would look where the edit's lines stand.
    around = hull([span for span, _ in known] or [place for part in parts for place in part.places])
    return [(around, frozenset(range(len(parts))))] if around is not None else []


def _changes(lines: Sequence[str], readings: Sequence[str]) -> Iterator[Change]:
    for number, reading in enumerate(readings):
        new = lines_of(reading)
        for op in line_opcodes(lines, new):
            if not op.equal:
                yield Change(number, (op.a_start, op.a_end), frozenset(solid(new[op.b_start : op.b_end])))


def assign(change: Change, parts: Sequence[Part]) -> bool:
    """Count a change to the parts that it may be of; False where these are not told by its place and lines alike."""
    if len(parts) == 1:
        parts[0].changes.append(change)
        return True
    reaching = [part for part in parts if part.reaches(change)]
    bringing = [part for part in parts if part.brings(change)]
    both = [part for part in reaching if part in bringing]
    owners = both or reaching or bringing or parts
    for part in owners:
        part.changes.append(change)
    if both or not reaching:
        return bool(both) or len(bringing) == 1
    return not bringing
