"""Where the lines of each hunk stand in a text: all places of its old lines, or of its new ones if it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from editor.errors import TooMuchWorkError
from editor.matching.indentation import Shift
from editor.matching.index import exact
from editor.matching.ladder import Places
from editor.patches.done import standing
from editor.patches.hunk_places import in_order
from editor.patches.slots import Slot, num_common, slot_of
from editor.patches.target import Target
from editor.types import Replacement

MAX_PLACES = 2_000_000
"""The places of all hunks of one edit, a place counted once for each hunk that fits there."""

_NOWHERE = Places("exact", (), ())


def slots_at_their_lines(target: Target, hunks: Sequence[tuple[int, Replacement]]) -> list[Slot] | None:
    """Return the slots if every hunk stands exactly at its line: nothing else needs to be looked at then."""
    slots: list[Slot] = []
    for number, change in hunks:
        line, size = change.hint.line, len(change.before)
        if line is None or not size or tuple(target.lines[line : line + size]) != change.before:
            return None
        if change.hint.at_end and line + size != len(target.lines):
            return None
        slots.append(slot_of(number, change, Places("exact", (line,), (Shift(),))).at(line, "hint"))
    return slots if in_order(slots) else None


def find_slots(target: Target, hunks: Sequence[tuple[int, Replacement]]) -> list[Slot]:
    """Return the slots of numbered hunks with all their places, none of them chosen; raises `TooMuchWorkError`."""
    slots: list[Slot] = []
    grown = num_places = 0
    for number, change in hunks:
        slots.append(_slot(target, number, change, grown))
        grown += len(change.after) - len(change.before)
        num_places += len(slots[-1].starts)
        if num_places > MAX_PLACES:
            raise TooMuchWorkError(f"its hunks fit in more than {MAX_PLACES} places together")
    return slots


def _slot(target: Target, number: int, change: Replacement, grown: int) -> Slot:
    """Return one hunk with its places; `grown` is by how many lines the hunks before it make the file longer."""
    if not change.before:
        places = _insertion(target, change)
    elif not any(line.strip() for line in change.before):
        starts = target.index.by(exact).starts(change.before)
        places = Places("exact", starts, (Shift(),) * len(starts))
    else:
        change, places = _find_before(target, change)
    if places.starts:
        return slot_of(number, change, places)
    done = standing(target, change, grown)
    return slot_of(number, change, done or places, done=done is not None)


def _insertion(target: Target, change: Replacement) -> Places:
    """Return the end of the text where that is certain: the text is empty, or the hunk says so and is not done."""
    size = len(target.lines)
    at_end = change.hint.at_end and tuple(target.lines[-len(change.after) :]) != change.after
    return Places("exact", (size,), (Shift(),)) if not target.lines or at_end else _NOWHERE


def _find_before(target: Target, change: Replacement) -> tuple[Replacement, Places]:
    """Find the old lines; blank context lines at the end, which the file need not have, are left out if need be."""
    places = target.find(change.before)
    blank = num_common(_blanks_below(change.before), _blanks_below(change.after))
    if places is None and blank:
        shorter = replace(change, before=change.before[:-blank], after=change.after[:-blank])
        places = target.find(shorter.before)
        change = shorter if places is not None else change
    return change, places or _NOWHERE


def _blanks_below(lines: Sequence[str]) -> list[str]:
    return list(takewhile(lambda line: not line, reversed(lines)))
