"""An edit divided among regions: each is given its own parts, in the form in which they were sent."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from editor.types import ParsedEdit, Sketch, Substitutions


def divided(edit: ParsedEdit, groups: Sequence[Set[int]]) -> list[ParsedEdit | None] | None:
    """Return the edit of each group of parts, None for all of it as it was sent; None where it cannot be divided.

    A part without a group touches nothing and is left out. A snippet that is given beside a part of its file leaves the
    rest of the file out, whether it says so or not.
    """
    if isinstance(edit.changes, Sketch):
        return [_of_sketch(edit, edit.changes, numbers, len(groups)) for numbers in groups]
    if len(groups) == 1:
        return [None]
    if isinstance(edit.changes, Substitutions):
        items = edit.changes.items
        return [replace(edit, changes=Substitutions(tuple(items[at] for at in sorted(some)))) for some in groups]
    changes = edit.changes
    if any(change.hint.pinned or not any(map(str.strip, change.before)) for change in changes):
        return None  # without the old lines nothing of a part says where in its region it belongs
    return [replace(edit, changes=tuple(changes[at] for at in sorted(some))) for some in groups]


def _of_sketch(edit: ParsedEdit, sketch: Sketch, numbers: Set[int], num_groups: int) -> ParsedEdit | None:
    if num_groups == 1 and sketch.elides:
        return None
    kept = sorted(numbers)
    indents = _indents(sketch)
    part = replace(
        sketch,
        blocks=tuple(sketch.blocks[at] for at in kept),
        opens_elided=True,
        closes_elided=True,
        marker_indents=(*(indents[at] for at in kept), indents[kept[-1] + 1]),
    )
    return replace(edit, changes=part)


def _indents(sketch: Sketch) -> list[tuple[str, ...]]:
    """Return the indentation of a marker above each block, and below the last."""
    given = list(sketch.marker_indents)
    if not given:
        return [(_indent(block),) for block in (*sketch.blocks, sketch.blocks[-1])]
    above = [] if sketch.opens_elided else [(_indent(sketch.blocks[0]),)]
    below = [] if sketch.closes_elided else [(_indent(sketch.blocks[-1]),)]
    return [*above, *given, *below]


def _indent(block: Sequence[str]) -> str:
    first = next((line for line in block if line.strip()), "")
    return first[: len(first) - len(first.lstrip())]
