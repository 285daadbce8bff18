"""Finds the place of each hunk by its lines, its scope, its hint and its order.

The first rule that applies decides: the end of the file, if the hunk says so; the hunk's only place; the hunk's line
number, moved by the same offset as the nearest hunks that have only one place; the place inside the hunk's scope; the
only place that keeps all hunks in order. A line number or a scope never makes lines match that are not there.

A hunk is already applied if its old lines are not in the file and its new lines are, or if its new lines are there
beside their context. A hunk of the second kind that is exactly at its line number stays open: the text may repeat
itself, or the diff may have been sent twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile

from editor.diff import line_opcodes
from editor.errors import TooMuchWorkError
from editor.hunks.slots import Scopes, Slot, Target, build_slot, count_common
from editor.match.already_applied import MIN_EVIDENCE, AppliedChange, find_applied, find_applied_at, has_new_words
from editor.match.ladder import Places, Shift, find_runs, get_indent, identity
from editor.types import Replacement


def choose_places(slots: Sequence[Slot], target: Target) -> list[Slot]:
    """Return the slots with a place chosen wherever a rule decides."""
    told = [_choose_by_end(slot, target.blank_below, len(target.lines)) for slot in slots]
    told = [slot.choose(slot.starts[0], "unique") if _is_certain(slot) else slot for slot in told]
    told = _choose_by_hint(told)
    told = [_choose_by_scope(slot, target.scopes) for slot in told]
    return _choose_by_order(told)


def is_in_order(slots: Sequence[Slot]) -> bool:
    """Return whether all decided hunks are in order, without overlapping."""
    cores = [slot.find_core(slot.chosen) for slot in slots if slot.chosen is not None]
    return all(_fits(above, below) for above, below in pairwise(cores))


def find_expected_lines(slots: Sequence[Slot]) -> list[int | None]:
    """Return where each slot should begin by its line number and the nearest unique hunks; None if that is open."""
    if not _has_plausible_lines(slots):
        return [None] * len(slots)
    above = _find_offsets(slots, behind=True)
    below = _find_offsets(slots[::-1], behind=False)[::-1]
    return [
        _find_expected_line(slot.line, {*pair} - {None})
        for slot, pair in zip(slots, zip(above, below, strict=True), strict=True)
    ]


def _find_expected_line(line: int | None, offsets: set[int | None]) -> int | None:
    offset = offsets.pop() if len(offsets) == 1 else None
    return None if line is None or offsets else line + (offset or 0)


def _find_offsets(slots: Sequence[Slot], *, behind: bool) -> list[int | None]:
    """Return for each slot the offset of the nearest anchor before it from its line number."""
    offsets: list[int | None] = []
    offset: int | None = None
    for slot in slots:
        offsets.append(offset)
        if _is_anchor(slot):
            offset = _measure_offset(slot, behind=behind)
    return offsets


def _is_certain(slot: Slot) -> bool:
    # Blank lines alone prove nothing, even if the file has only one.
    return len(slot.starts) == 1 and (not slot.change.before or any(map(str.strip, slot.change.before)))


def _choose_by_end(slot: Slot, blank_below: int, num_lines: int) -> Slot:
    if not slot.change.hint.at_end:
        return slot
    at_end = [start for start in slot.starts if start + slot.size == num_lines]
    return slot.restrict_to(at_end) if at_end else slot.limit_to(blank_below - slot.size, num_lines)


def _has_plausible_lines(slots: Sequence[Slot]) -> bool:
    """Return whether the line numbers ascend; models also fill in one number everywhere."""
    lines = [slot.line for slot in slots if slot.line is not None]
    return all(above < below for above, below in pairwise(lines))


def _is_anchor(slot: Slot) -> bool:
    return slot.rule == "unique" and slot.chosen is not None and slot.line is not None


def _measure_offset(anchor: Slot, *, behind: bool) -> int:
    assert anchor.chosen is not None
    assert anchor.line is not None
    grown = len(anchor.change.after) - len(anchor.change.before) if anchor.done and behind else 0
    return anchor.chosen - anchor.line + grown


def _choose_by_hint(slots: Sequence[Slot]) -> list[Slot]:
    decided = list(slots)
    above = _find_offsets(slots, behind=True)
    for at, (slot, expected) in enumerate(zip(slots, find_expected_lines(slots), strict=True)):
        # If the hunk fits its own line too, and nothing above has moved, its lines may have been copied below.
        stays = expected != slot.line and slot.line is not None and slot.can_start_at(slot.line)
        is_disputed = stays and not above[at]
        if slot.chosen is None and expected is not None and slot.can_start_at(expected) and not is_disputed:
            decided[at] = slot.choose(expected, "hint")
    return decided


def _choose_by_scope(slot: Slot, scopes: Scopes) -> Slot:
    named = slot.change.hint.scopes
    if slot.chosen is not None or not named or not slot.starts:
        return slot
    inside = [start for start in slot.starts if scopes.contain(named, start, start + slot.size)]
    if not inside:
        return slot
    slot = slot.restrict_to(inside)
    return slot.choose(inside[0], "scope") if _is_certain(slot) else slot


def _choose_by_order(slots: Sequence[Slot]) -> list[Slot]:
    """Choose the place of each hunk that has only one place left if all hunks are kept in order.

    The first and the last place that allow that order bound the places of each hunk.
    """
    first = _place_leftmost(slots)
    last = _place_rightmost(slots)
    if first is None or last is None:
        return list(slots)
    decided: list[Slot] = []
    for slot, low, high in zip(slots, first, last, strict=True):
        if slot.chosen is None and slot.starts:
            slot = slot.limit_to(low, high)
            slot = slot.choose(slot.starts[0], "order") if _is_certain(slot) else slot
        decided.append(slot)
    return decided


def _place_leftmost(slots: Sequence[Slot]) -> list[int] | None:
    placed: list[int] = []
    above: tuple[int, int] | None = None
    for slot in slots:
        starts = _list_starts(slot)
        first = 0 if above is None else bisect_left(starts, above[1] - slot.lead)
        at_or_behind = (starts[row] for row in range(first, len(starts)))
        start = next((at for at in at_or_behind if above is None or _fits(above, slot.find_core(at))), None)
        if start is None:
            return None
        placed.append(start)
        above = slot.find_core(start)
    return placed


def _place_rightmost(slots: Sequence[Slot]) -> list[int] | None:
    placed: list[int] = []
    below: tuple[int, int] | None = None
    for slot in reversed(slots):
        starts = _list_starts(slot)
        last = len(starts) if below is None else bisect_right(starts, below[0] - slot.size + slot.trail)
        at_or_before = (starts[row] for row in range(last - 1, -1, -1))
        start = next((at for at in at_or_before if below is None or _fits(slot.find_core(at), below)), None)
        if start is None:
            return None
        placed.append(start)
        below = slot.find_core(start)
    return placed[::-1]


def _list_starts(slot: Slot) -> Sequence[int]:
    return slot.starts if slot.chosen is None else (slot.chosen,)


def _fits(above: tuple[int, int], below: tuple[int, int]) -> bool:
    """Return whether one range ends before the other begins; two insertions at one point have no order."""
    return above[1] <= below[0] and above != below


def find_new_lines(target: Target, change: Replacement, grown: int) -> Places | None:
    """Return the place of the new lines of a hunk that quotes no words; None if they may be there by chance.

    `grown` is by how many lines the hunks before it lengthen the text.
    """
    if sum(char.isalnum() for line in change.after for char in line) < MIN_EVIDENCE:
        return None
    there = target.find(change.after)
    if there is None or there.rung not in ("exact", "trailing_space"):
        return None
    expected = len(target.lines) - len(change.after) if change.hint.line is None else change.hint.line + grown
    unique = len(there.starts) == 1
    if expected not in there.starts or (not change.before and not unique):
        return None
    return Places(there.rung, (expected,), (there.shifts[there.starts.index(expected)],))


def mark_repeated(target: Target, slots: Sequence[Slot], final_newline: bool | None) -> list[Slot]:
    """Mark hunks as done whose new lines are already around their place.

    They are not marked if other hunks show that the edit is not applied. If others show that it is, such a hunk is done
    even exactly at its line. `final_newline` is what the edit says about the end of the text, None if nothing.
    """
    places = [_find_repeated_place(target, slot) for slot in slots]
    others_done = any(slot.done and slot.proven for slot in slots)
    told = list(slots)
    for number, (slot, at) in enumerate(zip(slots, places, strict=True)):
        if at is not None and slot.chosen is not None:
            reaches_end = slot.chosen + slot.size == len(target.lines)
            wants_other_end = reaches_end and final_newline not in (None, target.has_final_newline)
            is_done = not wants_other_end and (others_done or _is_repeated(slot, at))
            told[number] = _mark_done(slot, at) if is_done else slot.restrict_to([slot.chosen])
    if all(slot.done for slot in told):
        return told
    return [
        new if at is None or old.chosen is None else old.restrict_to([old.chosen])
        for old, new, at in zip(slots, told, places, strict=True)
    ]


def _find_repeated_place(target: Target, slot: Slot) -> int | None:
    """Return where the new lines of a hunk are around its place; None if they are not there."""
    if slot.done or slot.chosen is None or not slot.change.before:
        return None
    return _find_repeated_lines(target.lines, slot, slot.chosen)


def _mark_done(slot: Slot, at: int) -> Slot:
    return build_slot(slot.number, slot.change, Places(slot.rung, (at,), (Shift(),)), done=True).choose(at, "unique")


def _is_repeated(slot: Slot, at: int) -> bool:
    """Return whether the lines found at `at` are this hunk's own result, and not similar lines by chance."""
    if at == slot.line != slot.chosen:
        return True
    held = slot.chosen == slot.line and all(slot.context)
    return not held and any(char.isalnum() for line in slot.new_lines for char in line)


def _find_repeated_lines(lines: Sequence[str], slot: Slot, start: int) -> int | None:
    """Return where all new lines are so that they include the place of the old ones, None if nowhere."""
    after, end = slot.change.after, start + slot.size
    if len(after) <= slot.size:
        return None
    first = max(0, end - len(after))
    found = next(find_runs(lines[first : start + len(after)], after), None)
    return None if found is None else first + found


MAX_PLACES = 2_000_000
"""The number of places of all hunks of one edit; a place counts once for each hunk that fits there."""

_NOWHERE = Places("exact", (), ())


def find_slots_at_hints(target: Target, hunks: Sequence[tuple[int, Replacement]]) -> list[Slot] | None:
    """Return the slots if every hunk is exactly at its line, else None; then nothing else has to be searched."""
    slots: list[Slot] = []
    for number, change in hunks:
        line, size = change.hint.line, len(change.before)
        if line is None or not size or tuple(target.lines[line : line + size]) != change.before:
            return None
        if change.hint.at_end and line + size != len(target.lines):
            return None
        slots.append(build_slot(number, change, Places("exact", (line,), (Shift(),))).choose(line, "hint"))
    return slots if is_in_order(slots) else None


def find_slots(target: Target, hunks: Sequence[tuple[int, Replacement]]) -> list[Slot]:
    """Return the slots of numbered hunks with all their places, none of them chosen; raises `TooMuchWorkError`."""
    slots: list[Slot] = []
    grown = num_places = 0
    for number, change in hunks:
        slots.append(_find_slot(target, number, change, grown))
        grown += len(change.after) - len(change.before)
        num_places += len(slots[-1].starts)
        if num_places > MAX_PLACES:
            raise TooMuchWorkError(f"its hunks fit in more than {MAX_PLACES} places together")
    return slots


def _find_slot(target: Target, number: int, change: Replacement, grown: int) -> Slot:
    """Return one hunk with its places; `grown` is by how many lines the hunks before it lengthen the file.

    If the old lines are not in the file exactly, or not at their line number, the new lines are looked for first: a
    diff sent twice must not change another place the second time.
    """
    if not change.before:
        places = _find_insertion_place(target, change)
        return _find_slot_without_words(target, number, change, places, grown)
    if not any(line.strip() for line in change.before):
        starts = target.index.key_by(identity).find_starts(change.before)
        places = Places("exact", starts, (Shift(),) * len(starts))
        return _find_slot_without_words(target, number, change, places, grown)
    change, places = _find_before(target, change)
    line = change.hint.line
    is_strict = bool(places.starts) and places.rung in ("exact", "trailing_space")
    expected = () if line is None or (is_strict and line in places.starts) else (line + grown, line)
    done = (
        find_applied_at(target.lines, change, expected) if is_strict else find_applied(target.index, change, expected)
    )
    if done is None:
        return build_slot(number, change, places)
    if not done.doubt:
        return _build_done_slot(number, change, done)
    told = done.message.replace("The REPLACE lines", "The new lines").replace("SEARCH", "the old lines")
    return replace(build_slot(number, change, places), told=told, is_twin=is_strict or has_new_words(change))


def _build_done_slot(number: int, change: Replacement, done: AppliedChange) -> Slot:
    places = Places(done.rung, (done.start,), (Shift(),))
    return replace(build_slot(number, change, places, done=True), proven=done.proven)


def _find_slot_without_words(target: Target, number: int, change: Replacement, places: Places, grown: int) -> Slot:
    """Return a hunk that quotes no words of the file."""
    done = None if places.starts else find_new_lines(target, change, grown)
    return build_slot(number, change, done or places, done=done is not None)


def _find_insertion_place(target: Target, change: Replacement) -> Places:
    """Return the end of the text if the insertion certainly belongs there: the text is empty, or the hunk says so."""
    size = len(target.lines)
    at_end = change.hint.at_end and tuple(target.lines[-len(change.after) :]) != change.after
    return Places("exact", (size,), (Shift(),)) if not target.lines or at_end else _NOWHERE


def _find_before(target: Target, change: Replacement) -> tuple[Replacement, Places]:
    """Find the old lines as they were sent, or as they are after the usual mistakes of models are undone.

    Blank context lines at the end, which the file need not have, are dropped. Context lines get back the blank that is
    their sign, if the lines then match exactly.
    """
    places = target.find(change.before)
    if places is not None and places.rung in ("exact", "trailing_space"):
        return change, places
    signed = restore_signs(change)
    whole = target.find(signed.before) if signed is not None else None
    if signed is not None and whole is not None and whole.rung in ("exact", "trailing_space"):
        return signed, whole
    blank = count_common(_list_trailing_blanks(change.before), _list_trailing_blanks(change.after))
    if places is None and blank:
        shorter = replace(change, before=change.before[:-blank], after=change.after[:-blank])
        places = target.find(shorter.before)
        change = shorter if places is not None else change
    return change, places or _NOWHERE


def restore_signs(change: Replacement) -> Replacement | None:
    """Return a hunk with the first blank restored on context lines that were sent without it: it is their sign.

    Removed and added lines have their signs and stay as they are. None if the whole hunk may as well have been sent one
    blank too far left, so that the new lines are indented like the context as it was read.
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
                context.add(get_indent(before[row]))
                before[row] = after[other] = " " + before[row]
    depths = [get_indent(line) for line in added if line.strip()]
    as_read = any(depth in context for depth in depths)
    as_sent = any(depth in {" " + one for one in context} for depth in depths)
    if not context or (depths and (as_read or not as_sent)):
        return None
    return replace(change, before=tuple(before), after=tuple(after))


def _list_trailing_blanks(lines: Sequence[str]) -> list[str]:
    return list(takewhile(lambda line: not line, reversed(lines)))
