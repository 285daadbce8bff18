"""Hunks that are done already: their result stands in the text.

Either the old lines stand nowhere and the new ones do, or new lines stand there beside their context. A hunk of the
latter kind that stands exactly at its line is open: the text repeats itself, or the diff was sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from editor.matching.indentation import Shift
from editor.matching.index import starts_in
from editor.matching.ladder import Places
from editor.matching.result import MIN_EVIDENCE
from editor.patches.slots import Slot, slot_of
from editor.patches.target import Target
from editor.types import Replacement


def standing(target: Target, change: Replacement, grown: int) -> Places | None:
    """Return the one place where the new lines of a hunk that quotes no words stand, not by chance.

    `grown` is by how many lines the hunks before it make the text longer.
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
    """Mark hunks as done that only repeat what stands there, unless others show that the edit is not applied.

    Where others show that it is, such a hunk is done even if it stands exactly at its line. `final_newline` is what the
    edit says of the end of the text, None if nothing.
    """
    places = [_repeated_place(target, slot) for slot in slots]
    others_done = any(slot.done and slot.proven for slot in slots)
    told = list(slots)
    for number, (slot, at) in enumerate(zip(slots, places, strict=True)):
        if at is not None and slot.chosen is not None:
            reaches_end = slot.chosen + slot.size == len(target.lines)
            wants_other_end = reaches_end and final_newline not in (None, target.has_final_newline)
            is_done = not wants_other_end and (others_done or _is_repeated(slot, at))
            told[number] = _marked(slot, at) if is_done else slot.narrowed([slot.chosen])
    if all(slot.done for slot in told):
        return told
    return [
        new if at is None or old.chosen is None else old.narrowed([old.chosen])
        for old, new, at in zip(slots, told, places, strict=True)
    ]


def _repeated_place(target: Target, slot: Slot) -> int | None:
    """Return where the new lines of a hunk stand around its place; None if they do not."""
    if slot.done or slot.chosen is None or not slot.change.before:
        return None
    return _repeated_at(target.lines, slot, slot.chosen)


def _marked(slot: Slot, at: int) -> Slot:
    return slot_of(slot.number, slot.change, Places(slot.rung, (at,), (Shift(),)), done=True).at(at, "unique")


def _is_repeated(slot: Slot, at: int) -> bool:
    """Tell whether the result that stands at a line is the hunk's own, and not a line like it by chance."""
    if at == slot.line != slot.chosen:
        return True
    held = slot.chosen == slot.line and all(slot.context)
    return not held and any(char.isalnum() for line in slot.added for char in line)


def _repeated_at(lines: Sequence[str], slot: Slot, start: int) -> int | None:
    """Return where all new lines stand so that they hold the place of the old ones, None if they do not."""
    after, end = slot.change.after, start + slot.size
    if len(after) <= slot.size:
        return None
    first = max(0, end - len(after))
    found = next(starts_in(lines[first : start + len(after)], after), None)
    return None if found is None else first + found
