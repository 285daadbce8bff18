"""What hunks write at their places."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from editor.blocks.splices import Splice
from editor.matching.spelling import in_file_spelling
from editor.patches.slots import Slot
from editor.patches.target import Target
from editor.types import Unresolved


def splice_at(target: Target, slot: Slot, start: int) -> tuple[Splice | None, str]:
    """Return what a hunk writes at one of its places, and what is in doubt about it; None if nothing can be written.

    Context is left out: hunks may share lines of it.
    """
    found = target.lines[start : start + slot.size]
    if slot.done:
        return Splice(start, start + slot.size, tuple(found), slot.rung, done=True), ""
    first, last = slot.core(start)
    if slot.rung == "exact":
        return Splice(first, last, slot.added, slot.rung), ""
    mapping = slot.mappings[bisect_left(slot.starts, start)]
    held, yaml = slot.line == start, target.index.language == "yaml"
    written = in_file_spelling(slot.change, found, mapping, slot.rung, held=held, yaml=yaml)
    if written is None:
        return None, "for the indentation, and the new lines cannot be moved to it"
    return Splice(first, last, slot.without_context(written.lines), slot.rung), written.doubt


def clash(splices: Sequence[Splice]) -> Unresolved | None:
    """Refuse hunks that change the same lines, or add lines at the same point."""
    ordered = sorted((one for one in splices if not one.done), key=lambda one: (one.start, one.end))
    for above, below in pairwise(ordered):
        if below.start < above.end or (above.start, above.end) == (below.start, below.end):
            return Unresolved(
                "open_intent",
                f"Two hunks change the same lines: {above.where} and {below.where}.",
                num_candidates=2,
                suggestion="Join the two hunks into one.",
            )
    return None
