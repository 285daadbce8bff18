"""Where the lines of each hunk stand in a text: all places of its old lines, or of its new ones if it is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from editor.alignment import line_opcodes
from editor.errors import TooMuchWorkError
from editor.matching.indentation import Shift, indent
from editor.matching.index import exact
from editor.matching.ladder import Places
from editor.matching.result import Result, find_result, result_at
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
    """Return one hunk with its places; `grown` is by how many lines the hunks before it make the file longer.

    Where the old lines do not stand to the letter, or not at their line number, it is asked first whether the new ones
    stand there: a diff sent twice must not change another place the second time.
    """
    if not change.before:
        places = _insertion(target, change)
        return _slot_of_standing(target, number, change, places, grown)
    if not any(line.strip() for line in change.before):
        starts = target.index.by(exact).starts(change.before)
        places = Places("exact", starts, (Shift(),) * len(starts))
        return _slot_of_standing(target, number, change, places, grown)
    change, places = _find_before(target, change)
    line = change.hint.line
    is_strict = bool(places.starts) and places.rung in ("exact", "trailing_space")
    expected = () if line is None or (is_strict and line in places.starts) else (line + grown, line)
    done = result_at(target.lines, change, expected) if is_strict else find_result(target.index, change, expected)
    if done is None:
        return slot_of(number, change, places)
    if not done.doubt:
        return _done(number, change, done)
    told = done.told.replace("The REPLACE lines", "The new lines").replace("SEARCH", "the old lines")
    return replace(slot_of(number, change, places), told=told, is_twin=is_strict or _adds_words(change))


def _done(number: int, change: Replacement, done: Result) -> Slot:
    places = Places(done.rung, (done.start,), (Shift(),))
    return replace(slot_of(number, change, places, done=True), proven=done.proven)


def _slot_of_standing(target: Target, number: int, change: Replacement, places: Places, grown: int) -> Slot:
    """Return a hunk that quotes no words of the file."""
    done = None if places.starts else standing(target, change, grown)
    return slot_of(number, change, done or places, done=done is not None)


def _adds_words(change: Replacement) -> bool:
    return any(line not in change.before and any(map(str.isalnum, line)) for line in change.after)


def _insertion(target: Target, change: Replacement) -> Places:
    """Return the end of the text where that is certain: the text is empty, or the hunk says so and is not done."""
    size = len(target.lines)
    at_end = change.hint.at_end and tuple(target.lines[-len(change.after) :]) != change.after
    return Places("exact", (size,), (Shift(),)) if not target.lines or at_end else _NOWHERE


def _find_before(target: Target, change: Replacement) -> tuple[Replacement, Places]:
    """Find the old lines, as they were sent or as models send them by mistake.

    Blank context lines at the end, which the file need not have, are left out if need be; so is the sign of context
    lines taken to be missing where the lines then stand to the letter.
    """
    places = target.find(change.before)
    if places is not None and places.rung in ("exact", "trailing_space"):
        return change, places
    signed = with_signs(change)
    whole = target.find(signed.before) if signed is not None else None
    if signed is not None and whole is not None and whole.rung in ("exact", "trailing_space"):
        return signed, whole
    blank = num_common(_blanks_below(change.before), _blanks_below(change.after))
    if places is None and blank:
        shorter = replace(change, before=change.before[:-blank], after=change.after[:-blank])
        places = target.find(shorter.before)
        change = shorter if places is not None else change
    return change, places or _NOWHERE


def with_signs(change: Replacement) -> Replacement | None:
    """Return a hunk whose context lines were sent without the blank that is their sign, with their first blank.

    The lines that go and come have their signs, and stand as they were sent. None where it may as well be that the
    whole hunk was sent one blank too far left: the new lines are then indented like the context as it was read.
    """
    before, after = list(change.before), list(change.after)
    context: set[str] = set()
    added: list[str] = []
    for op in line_opcodes(change.before, change.after):
        if not op.equal:
            added += after[op.b_start : op.b_end]
            continue
        for row, other in zip(range(op.a_start, op.a_end), range(op.b_start, op.b_end), strict=True):
            if before[row].strip():
                context.add(indent(before[row]))
                before[row] = after[other] = " " + before[row]
    depths = [indent(line) for line in added if line.strip()]
    as_read = any(depth in context for depth in depths)
    as_sent = any(depth in {" " + one for one in context} for depth in depths)
    if not context or (depths and (as_read or not as_sent)):
        return None
    return replace(change, before=tuple(before), after=tuple(after))


def _blanks_below(lines: Sequence[str]) -> list[str]:
    return list(takewhile(lambda line: not line, reversed(lines)))
