"""New lines as the file would write them: its indentation, and its own bytes for whatever the edit leaves as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from editor.alignment import line_opcodes
from editor.matching.folding import carried_over
from editor.matching.indentation import Mapping
from editor.matching.index import rstripped, starts_in
from editor.types import Replacement, Rung


@dataclass(frozen=True, slots=True)
class Written:
    """The lines to write; `sure` is False where the file's characters and the edit's may be mixed wrongly."""

    lines: tuple[str, ...]
    sure: bool = True


def in_file_spelling(change: Replacement, found: Sequence[str], shift: Mapping, rung: Rung) -> Written | None:
    """Return `after` at the file's indentation, None if it cannot be moved there.

    Lines that `after` shares with `before` keep the file's own spelling; of a line that was folded to be found, and is
    changed in part, the unchanged part does.
    """
    after: list[str] = []
    sure = True
    for op in line_opcodes(change.before, change.after):
        if op.equal:
            after += found[op.a_start : op.a_end]
            continue
        shifted = _shifted(change.after[op.b_start : op.b_end], shift)
        if shifted is None:
            return None
        if rung == "folded":
            before = _shifted(change.before[op.a_start : op.a_end], shift)
            if before is None:
                return None
            shifted, certain = carried_over(found[op.a_start : op.a_end], before, shifted)
            sure = sure and certain
        after += shifted
    return Written(tuple(after), sure)


def in_spelling_of(have: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines, those that differ from the file's only by spaces at their end as they stand there."""
    merged = list(lines)
    for op in line_opcodes([rstripped(line) for line in have], [rstripped(line) for line in lines]):
        if op.equal:
            merged[op.b_start : op.b_end] = have[op.a_start : op.a_end]
    return merged


def already_there(lines: Sequence[str], start: int, end: int, after: tuple[str, ...]) -> bool:
    """Tell whether `after` already stands around [start, end), for changes that add lines to what they search."""
    if len(after) <= end - start:
        return False
    around = lines[max(0, end - len(after)) : start + len(after)]
    return next(starts_in(around, after), None) is not None


def _shifted(lines: Sequence[str], shift: Mapping) -> list[str] | None:
    moved = [shift.apply(line) for line in lines]
    whole = [line for line in moved if line is not None]
    return whole if len(whole) == len(moved) else None
