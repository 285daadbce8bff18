"""Which of its places each hunk of a diff belongs to, where its lines stand in several.

In this order: a place at the end of the file for a hunk that says so; exactly the line that the hunk gives, moved by as
much as the hunks next to it that stand in one place only; the place inside the hunk's scope; the only place that keeps
all hunks in their order. A line number or a scope never makes lines fit that do not stand there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from editor.patches.scopes import Scopes
from editor.patches.slots import Slot
from editor.patches.target import Target


def choose(slots: Sequence[Slot], target: Target) -> list[Slot]:
    """Return the slots, decided where a rule decides."""
    told = [_by_end(slot, target.blank_below, len(target.lines)) for slot in slots]
    told = [slot.at(slot.starts[0], "unique") if _is_certain(slot) else slot for slot in told]
    told = _by_hint(told)
    told = [_by_scope(slot, target.scopes) for slot in told]
    return _by_order(told)


def in_order(slots: Sequence[Slot]) -> bool:
    """Tell whether all decided hunks stand in their order, without overlapping."""
    cores = [slot.core(slot.chosen) for slot in slots if slot.chosen is not None]
    return all(_fits(above, below) for above, below in pairwise(cores))


def expected_lines(slots: Sequence[Slot]) -> list[int | None]:
    """Return where each slot should begin by its line number and the nearest unique hunks; None if that is open."""
    if not _has_plausible_lines(slots):
        return [None] * len(slots)
    above = _offsets(slots, behind=True)
    below = _offsets(slots[::-1], behind=False)[::-1]
    return [
        _expected(slot.line, {*pair} - {None}) for slot, pair in zip(slots, zip(above, below, strict=True), strict=True)
    ]


def _expected(line: int | None, offsets: set[int | None]) -> int | None:
    offset = offsets.pop() if len(offsets) == 1 else None
    return None if line is None or offsets else line + (offset or 0)


def _offsets(slots: Sequence[Slot], *, behind: bool) -> list[int | None]:
    """Return for each slot by how much the nearest anchor before it stands off its line number."""
    offsets: list[int | None] = []
    offset: int | None = None
    for slot in slots:
        offsets.append(offset)
        if _is_anchor(slot):
            offset = _offset(slot, behind=behind)
    return offsets


def _is_certain(slot: Slot) -> bool:
    # Blank lines alone say nothing: one blank line in a file is no reason to change that one.
    return len(slot.starts) == 1 and (not slot.change.before or any(map(str.strip, slot.change.before)))


def _by_end(slot: Slot, blank_below: int, num_lines: int) -> Slot:
    if not slot.change.hint.at_end:
        return slot
    at_end = [start for start in slot.starts if start + slot.size == num_lines]
    return slot.narrowed(at_end) if at_end else slot.between(blank_below - slot.size, num_lines)


def _has_plausible_lines(slots: Sequence[Slot]) -> bool:
    """Tell whether the line numbers ascend; models also fill in one number everywhere."""
    lines = [slot.line for slot in slots if slot.line is not None]
    return all(above < below for above, below in pairwise(lines))


def _is_anchor(slot: Slot) -> bool:
    return slot.rule == "unique" and slot.chosen is not None and slot.line is not None


def _offset(anchor: Slot, *, behind: bool) -> int:
    assert anchor.chosen is not None
    assert anchor.line is not None
    grown = len(anchor.change.after) - len(anchor.change.before) if anchor.done and behind else 0
    return anchor.chosen - anchor.line + grown


def _by_hint(slots: Sequence[Slot]) -> list[Slot]:
    decided = list(slots)
    above = _offsets(slots, behind=True)
    for at, (slot, expected) in enumerate(zip(slots, expected_lines(slots), strict=True)):
        # Where the hunk fits its own line too, and nothing above has moved, a copy of its lines may have come below.
        stays = expected != slot.line and slot.line is not None and slot.stands_at(slot.line)
        is_disputed = stays and not above[at]
        if slot.chosen is None and expected is not None and slot.stands_at(expected) and not is_disputed:
            decided[at] = slot.at(expected, "hint")
    return decided


def _by_scope(slot: Slot, scopes: Scopes) -> Slot:
    named = slot.change.hint.scopes
    if slot.chosen is not None or not named or not slot.starts:
        return slot
    inside = [start for start in slot.starts if scopes.hold(named, start, start + slot.size)]
    if not inside:
        return slot
    slot = slot.narrowed(inside)
    return slot.at(inside[0], "scope") if _is_certain(slot) else slot


def _by_order(slots: Sequence[Slot]) -> list[Slot]:
    """Decide the hunks that have one place left between the first and the last that keep all hunks in order."""
    first = _leftmost(slots)
    last = _rightmost(slots)
    if first is None or last is None:
        return list(slots)
    decided: list[Slot] = []
    for slot, low, high in zip(slots, first, last, strict=True):
        if slot.chosen is None and slot.starts:
            slot = slot.between(low, high)
            slot = slot.at(slot.starts[0], "order") if _is_certain(slot) else slot
        decided.append(slot)
    return decided


def _leftmost(slots: Sequence[Slot]) -> list[int] | None:
    placed: list[int] = []
    above: tuple[int, int] | None = None
    for slot in slots:
        starts = _options(slot)
        first = 0 if above is None else bisect_left(starts, above[1] - slot.lead)
        at_or_behind = (starts[row] for row in range(first, len(starts)))
        start = next((at for at in at_or_behind if above is None or _fits(above, slot.core(at))), None)
        if start is None:
            return None
        placed.append(start)
        above = slot.core(start)
    return placed


def _rightmost(slots: Sequence[Slot]) -> list[int] | None:
    placed: list[int] = []
    below: tuple[int, int] | None = None
    for slot in reversed(slots):
        starts = _options(slot)
        last = len(starts) if below is None else bisect_right(starts, below[0] - slot.size + slot.trail)
        at_or_before = (starts[row] for row in range(last - 1, -1, -1))
        start = next((at for at in at_or_before if below is None or _fits(slot.core(at), below)), None)
        if start is None:
            return None
        placed.append(start)
        below = slot.core(start)
    return placed[::-1]


def _options(slot: Slot) -> Sequence[int]:
    return slot.starts if slot.chosen is None else (slot.chosen,)


def _fits(above: tuple[int, int], below: tuple[int, int]) -> bool:
    """Tell whether one range ends before the other begins; two insertions at one point have no order."""
    return above[1] <= below[0] and above != below
