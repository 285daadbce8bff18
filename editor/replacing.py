"""SEARCH/REPLACE blocks put into a file: every block at its one place, or none at all.

All blocks are looked for in the original, and their places must not overlap; their order does not matter. If one is
found only in what an earlier block writes, or partly changes the same lines (models do send such chains), the blocks
are applied one after the other instead. Where both readings work and differ, no rule can tell which was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from editor.alignment import line_opcodes
from editor.formats.placeholders import holds_placeholder
from editor.ladder import Places, Shift, find
from editor.nearest import nearest_miss
from editor.types import AlreadyApplied, Merged, MergeOutcome, Replacement, Rung, Unresolved

_RUNGS: tuple[Rung, ...] = get_args(Rung)
# Fewer letters and digits than this stand in a file by chance.
_MIN_EVIDENCE = 8


@dataclass(frozen=True, slots=True)
class _Splice:
    """Lines [start, end) of the text are replaced by `lines`; `done` marks a block whose result already stands."""

    start: int
    end: int
    lines: tuple[str, ...]
    rung: Rung
    done: bool = False


def merge_replacements(lines: list[str], changes: Sequence[Replacement]) -> MergeOutcome:
    """Return the merged text, every line with an ending, or why there is none."""
    together = _apply_together(lines, changes)
    if len(changes) == 1:
        return together
    in_turn = _apply_in_turn(lines, changes)
    if isinstance(together, Unresolved):
        chained = together.code != "ambiguous" and not isinstance(in_turn, Unresolved)
        return in_turn if chained else together
    if isinstance(in_turn, Merged) and isinstance(together, Merged) and in_turn.text != together.text:
        return Unresolved(
            "ambiguous",
            "The blocks give one text when each is looked for in the original, and another when applied in turn.",
            num_candidates=2,
            suggestion="Send blocks whose SEARCH lines do not depend on each other.",
        )
    return together


def _apply_together(lines: list[str], changes: Sequence[Replacement]) -> MergeOutcome:
    splices: list[_Splice] = []
    for number, change in enumerate(changes, 1):
        splice = _resolve(lines, change)
        if isinstance(splice, Unresolved):
            return _numbered(splice, number, len(changes))
        splices.append(splice)
    splices.sort(key=lambda splice: (splice.start, splice.end))
    for above, below in pairwise(splices):
        if below.start < above.end:
            same = (above.start, above.end) == (below.start, below.end)
            return Unresolved(
                "ambiguous" if same else "open_intent",
                f"Two blocks change the same lines: {_span(above)} and {_span(below)}.",
                num_candidates=2,
                suggestion="Join the two blocks into one.",
            )
    return _spliced(lines, splices)


def _apply_in_turn(lines: list[str], changes: Sequence[Replacement]) -> MergeOutcome:
    rungs: set[Rung] = set()
    current = lines
    for number, change in enumerate(changes, 1):
        splice = _resolve(current, change)
        if isinstance(splice, Unresolved):
            return _numbered(splice, number, len(changes))
        if not splice.done:
            rungs.add(splice.rung)
            current = [*current[: splice.start], *splice.lines, *current[splice.end :]]
    return _outcome(lines, current, rungs)


def _spliced(lines: list[str], splices: Sequence[_Splice]) -> MergeOutcome:
    merged: list[str] = []
    at = 0
    for splice in splices:
        merged += lines[at : splice.start]
        merged += splice.lines
        at = splice.end
    merged += lines[at:]
    return _outcome(lines, merged, {splice.rung for splice in splices if not splice.done})


def _outcome(lines: list[str], merged: list[str], rungs: set[Rung]) -> MergeOutcome:
    if not rungs or merged == lines:
        return AlreadyApplied("Every block's REPLACE lines already stand in the file.")
    return Merged("".join(line + "\n" for line in merged), max(rungs, key=_RUNGS.index))


def _resolve(lines: list[str], change: Replacement) -> _Splice | Unresolved:
    """Return what one block does to the lines."""
    if change.before == change.after:
        return _Splice(0, 0, (), "exact", done=True)
    if not any(line.strip() for line in change.before):
        return _fill(lines, change)
    leaked = next((line for line in change.after if holds_placeholder(line) and line not in change.before), None)
    if leaked is not None:
        return Unresolved(
            "open_intent",
            f"The REPLACE lines hold the placeholder '{leaked.strip()}'.",
            suggestion="Write out all lines that shall stand there.",
        )
    places = find(lines, change.before)
    if places is None:
        return _not_found(lines, change)
    if len(places.starts) > 1:
        return _ambiguous(places, change)
    return _replace(lines, change, places)


def _fill(lines: list[str], change: Replacement) -> _Splice | Unresolved:
    """An empty SEARCH creates a file, or fills an empty one; in any other it does not say where."""
    if not any(line.strip() for line in lines):
        return _Splice(0, len(lines), change.after, "exact")
    if list(change.after) == lines:
        return _Splice(0, 0, (), "exact", done=True)
    return Unresolved(
        "open_intent",
        "The SEARCH part is empty, but the file is not.",
        suggestion="Put a few lines of the file into SEARCH, and repeat them in REPLACE with the new lines.",
    )


def _replace(lines: list[str], change: Replacement, places: Places) -> _Splice | Unresolved:
    start, shift = places.starts[0], places.shifts[0]
    end = start + len(change.before)
    found = lines[start:end]
    after = _in_file_spelling(change, found, shift)
    if after is None:
        return Unresolved(
            "not_found",
            f"Lines {start + 1}-{end} match with another indentation, but the REPLACE lines cannot be shifted to it.",
            suggestion="Indent the SEARCH and REPLACE lines exactly as the file does.",
        )
    repeated = _already_there(lines, start, end, after)
    if repeated is not None:
        added = [line for line in after if line not in found]
        if not any(char.isalnum() for line in added for char in line):
            return Unresolved(
                "open_intent",
                f"Line {start + 1} already stands among the REPLACE lines; whether they are wanted twice is open.",
                suggestion="Add the lines below or above to SEARCH.",
            )
        return _Splice(start, end, tuple(found), places.rung, done=True)
    return _Splice(start, end, after, places.rung)


def _in_file_spelling(change: Replacement, found: Sequence[str], shift: Shift) -> tuple[str, ...] | None:
    """Return `after` at the file's indentation; lines it shares with `before` keep the file's own spelling."""
    after: list[str] = []
    for op in line_opcodes(change.before, change.after):
        if op.equal:
            after += found[op.a_start : op.a_end]
            continue
        for line in change.after[op.b_start : op.b_end]:
            shifted = shift.apply(line)
            if shifted is None:
                return None
            after.append(shifted)
    return tuple(after)


def _already_there(lines: list[str], start: int, end: int, after: tuple[str, ...]) -> int | None:
    """Return where `after` already stands around [start, end), for blocks that add lines to what they search."""
    if len(after) <= end - start:
        return None
    first = max(0, end - len(after))
    spans = range(first, min(start, len(lines) - len(after)) + 1)
    return next((at for at in spans if tuple(lines[at : at + len(after)]) == after), None)


def _not_found(lines: list[str], change: Replacement) -> _Splice | Unresolved:
    evidence = sum(char.isalnum() for line in change.after for char in line)
    there = find(lines, change.after) if evidence >= _MIN_EVIDENCE else None
    if there is not None and len(there.starts) == 1 and there.rung != "reindent":
        return _Splice(0, 0, (), "exact", done=True)
    return Unresolved(
        "not_found",
        "The SEARCH lines do not stand in the file.",
        nearest=nearest_miss(lines, change.before),
        suggestion="Copy the SEARCH lines from the file as it is now; other blocks need not be sent again differently.",
    )


def _ambiguous(places: Places, change: Replacement) -> Unresolved:
    shown = ", ".join(f"{start + 1}-{start + len(change.before)}" for start in places.starts[:20])
    more = f" and {len(places.starts) - 20} more" if len(places.starts) > 20 else ""
    return Unresolved(
        "ambiguous",
        f"The SEARCH lines stand in {len(places.starts)} places: lines {shown}{more}.",
        num_candidates=len(places.starts),
        suggestion="Add lines above or below to SEARCH (and to REPLACE) until only one place fits.",
    )


def _numbered(unresolved: Unresolved, number: int, total: int) -> Unresolved:
    if total == 1:
        return unresolved
    reason = f"Block {number} of {total}: {unresolved.reason}"
    return Unresolved(unresolved.code, reason, unresolved.num_candidates, unresolved.nearest, unresolved.suggestion)


def _span(splice: _Splice) -> str:
    return f"lines {splice.start + 1}-{splice.end}"
