"""Hunks that are done already: their result stands in the text.

Either the old lines stand nowhere and the new ones do, or new lines stand there beside their context. Only a hunk with
three lines of context on both sides, exactly at its line, is applied even so: that is what a tool writes for text that
repeats itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from editor.matching.indentation import Shift
from editor.matching.index import starts_in
from editor.matching.ladder import Places
from editor.patches.slots import Slot, slot_of
from editor.patches.target import Target
from editor.types import Replacement

# Fewer letters and digits than this stand in a file by chance.
_MIN_EVIDENCE = 8
_FULL_CONTEXT = 3


def standing(target: Target, change: Replacement, grown: int) -> Places | None:
    """Return the one place where the new lines stand; they must be many enough not to stand there by chance.

    `grown` is by how many lines the hunks before it make the text longer.
    """
    if sum(char.isalnum() for line in change.after for char in line) < _MIN_EVIDENCE:
        return None
    there = target.find(change.after)
    if there is None or there.rung not in ("exact", "trailing_space"):
        return None
    expected = None if change.hint.line is None else change.hint.line + grown
    if not change.before and expected is None:
        expected = len(target.lines) - len(change.after)
    start = expected if expected in there.starts else there.starts[0] if len(there.starts) == 1 else None
    if start is None or (not change.before and (start != expected or len(there.starts) > 1)):
        return None
    return Places(there.rung, (start,), (there.shifts[there.starts.index(start)],))


def mark_repeated(target: Target, slots: Sequence[Slot], final_newline: bool | None) -> list[Slot]:
    """Mark hunks as done that only repeat what stands there, unless others show that the edit is not applied.

    `final_newline` is what the edit says of the end of the text, None if nothing.
    """
    told = [_marked_if_repeated(target, slot, final_newline) for slot in slots]
    if all(slot.done for slot in told):
        return told
    return [
        new if new.done == old.done or old.chosen is None else old.narrowed([old.chosen])
        for old, new in zip(slots, told, strict=True)
    ]


def is_held(slot: Slot) -> bool:
    """Tell whether a hunk that is done has context that holds it where it stands."""
    after = slot.change.after
    context = after[: slot.lead] + after[len(after) - slot.trail :]
    return any(line.strip() for line in context)


def _marked_if_repeated(target: Target, slot: Slot, final_newline: bool | None) -> Slot:
    """Mark a hunk as done whose new lines stand there beside its context; where that is open, no place is chosen."""
    if slot.done or slot.chosen is None or not slot.change.before:
        return slot
    at = _repeated_at(target.lines, slot, slot.chosen)
    if at is None or _is_as_a_tool_writes(target.lines, slot, slot.chosen):
        return slot
    wants_other_end = final_newline not in (None, target.has_final_newline)
    if not (wants_other_end and slot.chosen + slot.size == len(target.lines)) and _is_repeated(slot, at):
        return slot_of(slot.number, slot.change, Places(slot.rung, (at,), (Shift(),)), done=True).at(at, "unique")
    return slot.narrowed([slot.chosen])


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


def _is_as_a_tool_writes(lines: Sequence[str], slot: Slot, start: int) -> bool:
    above, below = slot.context
    return (
        start == slot.line
        and slot.rung == "exact"
        and (start == 0 or above >= _FULL_CONTEXT)
        and (start + slot.size == len(lines) or below >= _FULL_CONTEXT)
    )
