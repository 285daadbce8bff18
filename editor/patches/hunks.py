r"""Ordered hunks put into a file: all looked for in the original, every one at its one place, or none at all.

The lines of a hunk must stand in the file on some rung of the ladder (`finding.py`). `hunk_places.py` decides where
they stand in several places, `done.py` tells whose result stands there already, `refusals.py` says what is wrong.
Hunks that stand in one place each need not be in order (models mix them up), but must not overlap.

Certain without lines to look for: an insertion into an empty file, or at the end where the hunk says 'end of file'. Not
certain: an insertion with nothing but a line number; an insertion without any context, which Codex appends to the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from editor.blocks.splices import Open, Resolution, Splice, candidates, ops_of, spliced
from editor.patches.codex import merge_as_codex
from editor.patches.done import mark_repeated
from editor.patches.finding import find_slots, slots_at_their_lines
from editor.patches.hunk_places import choose, in_order
from editor.patches.refusals import Refusals
from editor.patches.slots import Slot
from editor.patches.target import Target
from editor.patches.writing import clash, splice_at
from editor.types import AlreadyApplied, Candidate, Merged, MergeOutcome, ParsedEdit, Replacement, Rung

_RUNGS: tuple[Rung, ...] = get_args(Rung)


def merge_hunks(original: str, edit: ParsedEdit, language: str | None = None, *, compat: bool = False) -> MergeOutcome:
    r"""Return the merged text of a text with "\n" lines, or why there is none.

    The final newline is as the edit says if one of its hunks reaches the end of the file, else as it was. With `compat`
    the first match wins, as in Codex's apply_patch (`editor/patches/codex.py`).
    """
    assert isinstance(edit.changes, tuple)
    if compat:
        return merge_as_codex(original, edit.changes)
    hunks = [(at, one) for at, one in enumerate(edit.changes) if _does_something(one, edit.final_newline)]
    if not hunks:
        return AlreadyApplied("The edit changes no line.")
    target = Target(original, language)
    slots = slots_at_their_lines(target, hunks) or choose(find_slots(target, hunks), target)
    slots = mark_repeated(target, slots, edit.final_newline)
    resolutions = _resolutions(target, slots, Refusals(target, slots, len(edit.changes)))
    opened = next((one for one in resolutions if isinstance(one, Open)), None)
    if opened is not None:
        return replace(opened.unresolved, candidates=_candidates(target, resolutions))
    splices = [one for one in resolutions if isinstance(one, Splice)]
    return clash(splices) or _merged(target, slots, splices, edit.final_newline)


def _does_something(change: Replacement, final_newline: bool | None) -> bool:
    return change.before != change.after or (change.hint.at_end and final_newline is not None)


def _resolutions(target: Target, slots: Sequence[Slot], refusals: Refusals) -> list[Resolution]:
    all_done = all(slot.done for slot in slots)
    ordered = in_order(slots)
    resolutions: list[Resolution] = []
    for at, slot in enumerate(slots):
        if slot.chosen is None:
            resolutions.append(refusals.undecided(at))
        elif slot.done and not (ordered and (all_done or slot.proven)):
            resolutions.append(refusals.not_found(slot))
        elif slot.is_twin:
            resolutions.append(refusals.twin(slot, slot.chosen))
        elif not _is_in_scope(target, slot, slot.chosen):
            resolutions.append(refusals.out_of_scope(slot, slot.chosen))
        else:
            splice, doubt = splice_at(target, slot, slot.chosen)
            certain = splice if not doubt else None
            resolutions.append(certain or refusals.misspelled(slot, slot.chosen, splice, doubt))
    return resolutions


def _is_in_scope(target: Target, slot: Slot, start: int) -> bool:
    """A section heading with line numbers may be out of date; a scope that stands for a place must be there."""
    named = slot.change.hint.scopes
    if not named or slot.rule in ("hint", "scope"):
        return True
    if not target.scopes.known(named):
        return slot.line is not None
    return target.scopes.hold(named, start, start + slot.size)


def _merged(
    target: Target, slots: Sequence[Slot], splices: Sequence[Splice], final_newline: bool | None
) -> MergeOutcome:
    merged = spliced(target.lines, splices)
    assert merged is not None
    reaches_end = any(slot.chosen is not None and slot.chosen + slot.size == len(target.lines) for slot in slots)
    newline = final_newline if reaches_end and final_newline is not None else target.has_final_newline
    text = _text(merged, final_newline=newline)
    if text == target.original:
        return AlreadyApplied("Every hunk's new lines already stand in the file.")
    rungs = {splice.rung for splice in splices if not splice.done} or {"exact"}
    return Merged(text, max(rungs, key=_RUNGS.index), ops=ops_of(splices, len(target.lines)))


def _candidates(target: Target, resolutions: Sequence[Resolution]) -> tuple[Candidate, ...]:
    found = candidates(target.lines, resolutions)
    newline = target.has_final_newline
    return tuple(replace(one, text=_text(one.text.split("\n")[:-1], final_newline=newline)) for one in found)


def _text(lines: Sequence[str], *, final_newline: bool) -> str:
    # A blank last line without a newline would be no line.
    ending = "\n" if lines and (final_newline or not lines[-1]) else ""
    return "\n".join(lines) + ending
