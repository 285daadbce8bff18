r"""Ordered hunks put into a file: all looked for in the original, every one at its one place, or none at all.

The lines of a hunk must stand in the file on some rung of the ladder; `hunk_places.py` decides where they stand in
several places. Hunks that stand in one place each need not be in order (models mix them up), but must not overlap.

Certain without lines to look for: an insertion into an empty file, or at the end where the hunk says 'end of file'. Not
certain: an insertion with nothing but a line number; an insertion without any context, which Codex appends to the file.

A hunk whose result stands there while its old lines do not is done already; so is one that adds lines which stand there
beside its context. Only a hunk with three lines of context on both sides, exactly at its line, is applied even so: that
is what a tool writes for text that repeats itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import get_args

from editor.blocks.splices import Open, Option, Resolution, Splice, candidates, spliced
from editor.matching.indentation import Shift
from editor.matching.index import LineIndex, exact
from editor.matching.ladder import Places, find
from editor.matching.nearest import nearest_miss
from editor.matching.spelling import in_file_spelling
from editor.patches.codex import merge_as_codex
from editor.patches.hunk_places import Slot, choose, expected_line, in_order
from editor.patches.scopes import Scopes
from editor.types import (
    AlreadyApplied,
    Candidate,
    Merged,
    MergeOutcome,
    ParsedEdit,
    ReasonCode,
    Replacement,
    Rung,
    Unresolved,
)
from editor.wording import span_of

_RUNGS: tuple[Rung, ...] = get_args(Rung)
# Fewer letters and digits than this stand in a file by chance.
_MIN_EVIDENCE = 8
_FULL_CONTEXT = 3
_MAX_OPTIONS = 8


def merge_hunks(original: str, edit: ParsedEdit, *, compat: bool = False) -> MergeOutcome:
    r"""Return the merged text of a text with "\n" lines, or why there is none.

    The final newline is as the edit says if one of its hunks reaches the end of the file, else as it was. With `compat`
    the first match wins, as in Codex's apply_patch (`editor/patches/codex.py`).
    """
    assert isinstance(edit.changes, tuple)
    if compat:
        return merge_as_codex(original, edit.changes)
    merger = _Merger(original, edit)
    return merger.outcome()


class _Merger:
    """One edit of one text."""

    def __init__(self, original: str, edit: ParsedEdit) -> None:
        assert isinstance(edit.changes, tuple)
        lines = original.split("\n")
        self._newline = lines[-1] == ""
        if self._newline:
            lines.pop()
        self._original = original
        self._lines = lines
        self._edit = edit
        self._index = LineIndex(lines)
        self._scopes = Scopes(self._index)
        self._found: dict[tuple[str, ...], Places | None] = {}
        self._total = len(edit.changes)
        self._hunks = [(at, one) for at, one in enumerate(edit.changes) if self._does_something(one)]

    def outcome(self) -> MergeOutcome:
        if not self._hunks:
            return AlreadyApplied("The edit changes no line.")
        slots = self._all_at_their_lines() or self._chosen()
        slots = self._done_if_all_are(slots)
        resolutions = self._resolutions(slots)
        opened = next((one for one in resolutions if isinstance(one, Open)), None)
        if opened is not None:
            return replace(opened.unresolved, candidates=self._candidates(resolutions))
        splices = [one for one in resolutions if isinstance(one, Splice)]
        clash = _clash(splices)
        if clash is not None:
            return clash
        return self._merged(slots, splices)

    def _does_something(self, change: Replacement) -> bool:
        return change.before != change.after or (change.hint.at_end and self._edit.final_newline is not None)

    # Finding

    def _all_at_their_lines(self) -> list[Slot] | None:
        """Return the slots if every hunk stands exactly at its line: nothing else needs to be looked at then."""
        slots: list[Slot] = []
        for number, change in self._hunks:
            line, size = change.hint.line, len(change.before)
            if line is None or not size or tuple(self._lines[line : line + size]) != change.before:
                return None
            if change.hint.at_end and line + size != len(self._lines):
                return None
            slots.append(_slot(number, change, Places("exact", (line,), (Shift(),))).at(line, "hint"))
        return slots if in_order(slots) else None

    def _chosen(self) -> list[Slot]:
        slots: list[Slot] = []
        grown = 0
        for number, change in self._hunks:
            slots.append(self._slot_of(number, change, grown))
            grown += len(change.after) - len(change.before)
        blank_below = len(self._lines)
        while blank_below and not self._lines[blank_below - 1].strip():
            blank_below -= 1
        return choose(slots, len(self._lines), blank_below, self._scopes)

    def _slot_of(self, number: int, change: Replacement, grown: int) -> Slot:
        """Return all places of one hunk; `grown` is by how many lines the hunks before it make the file longer."""
        if not change.before:
            places = self._insertion(change)
        elif not any(line.strip() for line in change.before):
            starts = self._index.by(exact).starts(change.before)
            places = Places("exact", starts, (Shift(),) * len(starts))
        else:
            change, places = self._find_before(change)
        if places.starts:
            return _slot(number, change, places)
        done = self._done(change, grown)
        return _slot(number, change, done or places, done=done is not None)

    def _find_before(self, change: Replacement) -> tuple[Replacement, Places]:
        """Find the old lines; blank context lines at the end, which the file need not have, are left out if need be."""
        places = self._find(change.before)
        blank = _common(_blanks_below(change.before), _blanks_below(change.after))
        if places is None and blank:
            shorter = replace(change, before=change.before[:-blank], after=change.after[:-blank])
            places = self._find(shorter.before)
            change = shorter if places is not None else change
        return change, places or Places("exact", (), ())

    def _find(self, wanted: tuple[str, ...]) -> Places | None:
        if wanted not in self._found:
            self._found[wanted] = find(self._index, wanted)
        return self._found[wanted]

    def _insertion(self, change: Replacement) -> Places:
        size = len(self._lines)
        certain = not self._lines or (change.hint.at_end and tuple(self._lines[-len(change.after) :]) != change.after)
        return Places("exact", (size,), (Shift(),)) if certain else Places("exact", (), ())

    def _done(self, change: Replacement, grown: int) -> Places | None:
        """Return the one place where the new lines stand; they must be many enough not to stand there by chance."""
        if sum(char.isalnum() for line in change.after for char in line) < _MIN_EVIDENCE:
            return None
        there = self._find(change.after)
        if there is None or there.rung not in ("exact", "trailing_space"):
            return None
        expected = None if change.hint.line is None else change.hint.line + grown
        if not change.before and expected is None:
            expected = len(self._lines) - len(change.after)
        start = expected if expected in there.starts else there.starts[0] if len(there.starts) == 1 else None
        if start is None or (not change.before and (start != expected or len(there.starts) > 1)):
            return None
        return Places(there.rung, (start,), (there.shifts[there.starts.index(start)],))

    def _done_if_all_are(self, slots: Sequence[Slot]) -> list[Slot]:
        """Mark hunks as done that only repeat what stands there, unless others show that the edit is not applied."""
        told = [self._done_if_repeated(slot) for slot in slots]
        if all(slot.done for slot in told):
            return told
        return [
            new if new.done == old.done or old.chosen is None else old.narrowed([old.chosen])
            for old, new in zip(slots, told, strict=True)
        ]

    def _done_if_repeated(self, slot: Slot) -> Slot:
        """Mark a hunk as done whose added lines stand there beside its context."""
        if slot.done or slot.chosen is None or not slot.change.before:
            return slot
        at = self._repeated_at(slot, slot.chosen)
        if at is None or self._is_as_a_tool_writes(slot, slot.chosen):
            return slot
        if self._edit.final_newline not in (None, self._newline) and slot.chosen + slot.size == len(self._lines):
            return slot.narrowed([slot.chosen])
        added = slot.change.after[slot.lead : len(slot.change.after) - slot.trail]
        moved = at == slot.line != slot.chosen
        held = slot.chosen == slot.line and all(_context(slot.change))
        if moved or (not held and any(char.isalnum() for line in added for char in line)):
            return _slot(slot.number, slot.change, Places(slot.rung, (at,), (Shift(),)), done=True).at(at, "unique")
        return slot.narrowed([slot.chosen])

    def _repeated_at(self, slot: Slot, start: int) -> int | None:
        after, end = slot.change.after, start + slot.size
        if len(after) <= slot.size:
            return None
        spans = range(max(0, end - len(after)), min(start, len(self._lines) - len(after)) + 1)
        starts = (at for at in spans if self._lines[at] == after[0])
        return next((at for at in starts if tuple(self._lines[at : at + len(after)]) == after), None)

    def _is_as_a_tool_writes(self, slot: Slot, start: int) -> bool:
        above, below = _context(slot.change)
        return (
            start == slot.line
            and slot.rung == "exact"
            and (start == 0 or above >= _FULL_CONTEXT)
            and (start + slot.size == len(self._lines) or below >= _FULL_CONTEXT)
        )

    # Deciding

    def _resolutions(self, slots: Sequence[Slot]) -> list[Resolution]:
        all_done = all(slot.done for slot in slots)
        ordered = in_order(slots)
        resolutions: list[Resolution] = []
        for at, slot in enumerate(slots):
            if slot.chosen is None:
                resolutions.append(self._undecided(slots, at))
            elif slot.done and not (ordered and (all_done or _is_held(slot))):
                resolutions.append(self._not_found(slot))
            elif not self._is_in_scope(slot, slot.chosen):
                resolutions.append(self._out_of_scope(slot, slot.chosen))
            else:
                resolutions.append(self._splice(slot, slot.chosen))
        return resolutions

    def _is_in_scope(self, slot: Slot, start: int) -> bool:
        """A section heading with line numbers may be out of date; a scope that stands for a place must be there."""
        named = slot.change.hint.scopes
        if not named or slot.rule in ("hint", "scope"):
            return True
        if not self._scopes.known(named):
            return slot.line is not None
        return self._scopes.hold(named, start, start + slot.size)

    def _splice(self, slot: Slot, start: int) -> Resolution:
        """Return what a hunk writes, context left out: hunks may share context lines."""
        found = self._lines[start : start + slot.size]
        if slot.done:
            return Splice(start, start + slot.size, tuple(found), slot.rung, done=True)
        first, last = slot.core(start)
        after = slot.change.after
        if slot.rung != "exact":
            mapping = slot.mappings[slot.starts.index(start)]
            written = in_file_spelling(slot.change, found, mapping, slot.rung)
            if written is None or not written.sure:
                return self._misspelled(slot, start, None if written is None else written.lines)
            after = written.lines
        return Splice(first, last, after[slot.lead : len(after) - slot.trail], slot.rung)

    def _misspelled(self, slot: Slot, start: int, after: tuple[str, ...] | None) -> Open:
        where = span_of(start, start + slot.size)
        unresolved = self._refusal(
            slot,
            "not_found" if after is None else "open_intent",
            f"stands at {where} but for indentation or look-alike characters, and how its new lines are to be written "
            "there is open.",
            "Copy the kept and removed lines exactly as they stand in the file.",
        )
        if after is None:
            return Open(unresolved)
        first, last = slot.core(start)
        splice = Splice(first, last, after[slot.lead : len(after) - slot.trail], slot.rung)
        return Open(unresolved, (Option(splice, 0.8, f"{self._name(slot)} taken at {where}"),))

    def _undecided(self, slots: Sequence[Slot], at: int) -> Open:
        slot = slots[at]
        if not slot.change.before:
            return self._unplaced_insertion(slots, at)
        if not slot.starts:
            found = self._find(slot.change.before) if any(map(str.strip, slot.change.before)) else None
            return self._not_found(slot) if found is None else self._not_at_end(slot, found)
        starts = slot.starts
        ranked = self._ranked(slots, at)
        options = [self._option(slot, start, rank, len(starts)) for rank, start in enumerate(ranked)]
        if len(starts) == 1:
            blank = not any(map(str.strip, slot.change.before))
            reason = (
                "quotes only blank lines, which do not say where they stand."
                if blank
                else "adds lines that stand there already; whether they are wanted twice is open."
            )
            return Open(self._refusal(slot, "open_intent", reason, _MORE_CONTEXT), _present(options))
        shown = ", ".join(f"{start + 1}-{start + slot.size}" for start in starts[:20])
        more = f" and {len(starts) - 20} more" if len(starts) > 20 else ""
        unresolved = self._refusal(
            slot, "ambiguous", f"fits in {len(starts)} places: lines {shown}{more}.", _MORE_CONTEXT, len(starts)
        )
        return Open(unresolved, _present(options))

    def _ranked(self, slots: Sequence[Slot], at: int) -> list[int]:
        """Return some places of a slot, those nearest to its line first, else from the top."""
        starts = slots[at].starts
        expected = expected_line(slots, at)
        line = slots[at].line if expected is None else expected
        if line is None:
            return list(starts[:_MAX_OPTIONS])
        row = bisect_left(starts, line)
        near = starts[max(0, row - _MAX_OPTIONS) : row + _MAX_OPTIONS]
        return sorted(near, key=lambda start: (abs(start - line), start))[:_MAX_OPTIONS]

    def _option(self, slot: Slot, start: int, rank: int, count: int) -> Option | None:
        splice = self._splice(slot, start)
        if isinstance(splice, Open):
            return splice.options[0] if splice.options else None
        score = 1 / count if slot.line is None else 0.6 * 0.5**rank
        return Option(splice, score, f"{self._name(slot)} taken at {span_of(start, start + slot.size)}")

    def _unplaced_insertion(self, slots: Sequence[Slot], at: int) -> Open:
        """An insertion without context: at its line number, or at the end of the file."""
        slot, size = slots[at], len(self._lines)
        expected = expected_line(slots, at)
        line = slot.line if expected is None else expected
        places = [size] if line is None else [min(line, size)]
        options = tuple(
            Option(
                Splice(place, place, slot.change.after, "exact"),
                0.6,
                f"{self._name(slot)} inserted above line {place + 1}",
            )
            for place in places
        )
        unresolved = self._refusal(
            slot,
            "open_intent",
            "only adds lines and quotes none of the file, so nothing shows where they belong.",
            "Put one or two lines of the file, each with a space before it, above or below the new lines.",
        )
        return Open(unresolved, options)

    def _not_at_end(self, slot: Slot, found: Places) -> Open:
        where = ", ".join(f"{start + 1}-{start + slot.size}" for start in found.starts[:5])
        placed = replace(slot, starts=found.starts, mappings=found.shifts, rung=found.rung)
        options = [self._option(placed, start, 1, len(found.starts)) for start in found.starts[:_MAX_OPTIONS]]
        unresolved = self._refusal(
            slot,
            "stale",
            f"should end with the file, but its lines stand at lines {where}.",
            "Leave the end-of-file marker out if other lines shall stay below.",
            len(found.starts),
        )
        return Open(unresolved, _present(options))

    def _out_of_scope(self, slot: Slot, start: int) -> Open:
        scope = " > ".join(slot.change.hint.scopes)
        known = self._scopes.known(slot.change.hint.scopes)
        what = (
            f"its lines stand at {start + 1}-{start + slot.size}, outside of it"
            if known
            else "the file has no such line"
        )
        unresolved = self._refusal(
            slot, "stale", f"belongs to '{scope}', but {what}.", "Copy the line behind '@@' from the file.", 1
        )
        return Open(unresolved, _present([self._option(slot, start, 0, 1)]))

    def _not_found(self, slot: Slot) -> Open:
        unresolved = self._refusal(
            slot,
            "not_found",
            "has kept and removed lines that do not stand in the file one below the other.",
            "Copy the kept and removed lines from the file as it is now; the other hunks need not change.",
        )
        return Open(replace(unresolved, nearest=nearest_miss(self._index, slot.change.before)))

    def _refusal(
        self, slot: Slot, code: ReasonCode, reason: str, suggestion: str, num_candidates: int = 0
    ) -> Unresolved:
        return Unresolved(code, f"{self._name(slot)} {reason}", num_candidates, suggestion=suggestion)

    def _name(self, slot: Slot) -> str:
        number = f"Hunk {slot.number + 1} of {self._total}" if self._total > 1 else "The hunk"
        return number if slot.line is None else f"{number} (line {slot.line + 1})"

    # Writing

    def _merged(self, slots: Sequence[Slot], splices: Sequence[Splice]) -> MergeOutcome:
        merged = spliced(self._lines, splices)
        assert merged is not None
        reaches_end = any(slot.chosen is not None and slot.chosen + slot.size == len(self._lines) for slot in slots)
        newline = self._edit.final_newline if reaches_end else None
        text = self._text(merged, self._newline if newline is None else newline)
        if text == self._original:
            return AlreadyApplied("Every hunk's new lines already stand in the file.")
        rungs = {splice.rung for splice in splices if not splice.done} or {"exact"}
        return Merged(text, max(rungs, key=_RUNGS.index))

    def _text(self, lines: Sequence[str], newline: bool) -> str:
        # A blank last line without a newline would be no line.
        ending = "\n" if lines and (newline or not lines[-1]) else ""
        return "\n".join(lines) + ending

    def _candidates(self, resolutions: Sequence[Resolution]) -> tuple[Candidate, ...]:
        found = candidates(self._lines, resolutions)
        return tuple(replace(one, text=self._text(one.text.split("\n")[:-1], self._newline)) for one in found)


_MORE_CONTEXT = "Add kept lines above or below until only one place fits, or name the enclosing scope behind '@@'."


def _slot(number: int, change: Replacement, places: Places, *, done: bool = False) -> Slot:
    lead = _common(change.before, change.after)
    most = min(len(change.before), len(change.after)) - lead
    trail = min(_common(change.before[::-1], change.after[::-1]), most)
    return Slot(number, change, places.starts, places.rung, places.shifts, lead, trail, done)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many lines two runs begin with alike."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _is_held(slot: Slot) -> bool:
    """Tell whether a hunk that is done has context that holds it where it stands."""
    after = slot.change.after
    context = after[: slot.lead] + after[len(after) - slot.trail :]
    return any(line.strip() for line in context)


def _context(change: Replacement) -> tuple[int, int]:
    """Return how many lines of context a hunk has above and below; in text that repeats itself they may overlap."""
    return _common(change.before, change.after), _common(change.before[::-1], change.after[::-1])


def _blanks_below(lines: Sequence[str]) -> list[str]:
    return list(takewhile(lambda line: not line, reversed(lines)))


def _present(options: Sequence[Option | None]) -> tuple[Option, ...]:
    return tuple(option for option in options if option is not None)


def _clash(splices: Sequence[Splice]) -> Unresolved | None:
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
