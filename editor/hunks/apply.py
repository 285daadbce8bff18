"""Applies ordered hunks to a file, all or none, or refuses them with reasons.

The lines of a hunk must be in the file on some rung of the ladder. `locate.py` chooses among several places and finds
hunks whose result is already in the file. This module merges the hunks, or says why it cannot. Hunks that have only one
place need not be in order (models mix them up), but must not overlap.

Some hunks quote no line of the file. An insertion into an empty file is certain, and so is one at the end if the hunk
says 'end of file'. An insertion with only a line number is not; nor is one without any context, which Codex appends to
the file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from editor.errors import format_span
from editor.hunks.locate import (
    choose_places,
    find_expected_lines,
    find_slots,
    find_slots_at_hints,
    is_in_order,
    mark_repeated,
)
from editor.hunks.slots import Slot, Target, build_splice, refuse_clash
from editor.match.ladder import Places
from editor.match.near_miss import describe_nearest
from editor.splices import Open, Option, Resolution, Splice, apply_splices, build_ops, combine_candidates
from editor.types import (
    RUNGS,
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

_MAX_OPTIONS = 8
_MAX_SHOWN = 20
_MAX_SHOWN_STALE = 5
_MAX_SCOPE_CHARS = 200
_MORE_CONTEXT = "Add kept lines above or below until only one place fits, or name the enclosing scope behind '@@'."


class Refusals:
    """Builds the refusals of the hunks of one edit, which has `total` of them; `slots` are those with an effect."""

    def __init__(self, target: Target, slots: Sequence[Slot], total: int) -> None:
        self._target = target
        self._slots = slots
        self._expected = find_expected_lines(slots)
        self._total = total
        self._is_shown = False

    def refuse_undecided(self, at: int) -> Open:
        """Refuse a hunk for which no rule has chosen a place."""
        slot = self._slots[at]
        has_words = any(line.strip() for line in slot.change.before)
        if not slot.change.before:
            return self._refuse_insertion(at)
        if not slot.starts:
            found = self._target.find(slot.change.before) if has_words else None
            return self.refuse_not_found(slot) if found is None else self._refuse_not_at_end(slot, found)
        ranked = _rank_places(slot, self._expected[at])
        options = _drop_missing(
            self._build_option(slot, start, rank, len(slot.starts)) for rank, start in enumerate(ranked)
        )
        if len(slot.starts) > 1:
            return self._refuse_ambiguous(slot, options)
        reason = (
            "adds lines that stand there already; whether they are wanted twice is open."
            if has_words
            else "quotes only blank lines, which do not say where they stand."
        )
        return Open(self._build_refusal(slot, "open_intent", reason, _MORE_CONTEXT), options)

    def refuse_misspelled(self, slot: Slot, start: int, splice: Splice | None, doubt: str) -> Open:
        """Refuse a hunk whose new lines have no certain spelling at its place; `splice` is the likely one, if any."""
        where = format_span(start, start + slot.size)
        unresolved = self._build_refusal(
            slot,
            "not_found" if splice is None else "open_intent",
            f"stands at {where} but {doubt}.",
            "Copy the kept and removed lines exactly as they stand in the file, and indent the new ones alike.",
        )
        return Open(unresolved, _drop_missing([self._build_option(slot, start, 0, 1)]))

    def refuse_twin(self, slot: Slot, start: int) -> Open:
        """Refuse a hunk whose place is only similar to its lines, while its new lines are elsewhere in the file."""
        where = format_span(start, start + slot.size)
        unresolved = self._build_refusal(
            slot,
            "open_intent",
            f"stands at {where}, but not as it says.{slot.told}",
            "If the edit is made already, leave this hunk out; else copy the kept and removed lines from the file.",
        )
        return Open(unresolved, _drop_missing([self._build_option(slot, start, 0, 1)]))

    def refuse_out_of_scope(self, slot: Slot, start: int) -> Open:
        """Refuse a hunk whose only place is outside of the scope that it names."""
        scope = " > ".join(slot.change.hint.scopes)
        scope = scope if len(scope) <= _MAX_SCOPE_CHARS else f"{scope[:_MAX_SCOPE_CHARS]}..."
        known = self._target.scopes.has_all(slot.change.hint.scopes)
        where = f"its lines stand at {start + 1}-{start + slot.size}, outside of it"
        what = where if known else "the file has no such line"
        unresolved = self._build_refusal(
            slot, "stale", f"belongs to '{scope}', but {what}.", "Copy the line behind '@@' from the file.", 1
        )
        return Open(unresolved, _drop_missing([self._build_option(slot, start, 0, 1)]))

    def refuse_not_found(self, slot: Slot) -> Open:
        """Refuse a hunk whose lines are not in the file."""
        told = slot.told
        if slot.done and slot.chosen is not None:
            where = format_span(slot.chosen, slot.chosen + slot.size)
            told = f" Its new lines stand at {where} already, but other hunks are not made."
        unresolved = self._build_refusal(
            slot,
            "not_found",
            f"has kept and removed lines that do not stand in the file one below the other.{told}",
            "Copy the kept and removed lines from the file as it is now; the other hunks need not change.",
        )
        if self._is_shown:
            return Open(unresolved)
        self._is_shown = True  # only the first of the refused hunks is answered
        return Open(replace(unresolved, nearest=describe_nearest(self._target.index, slot.change.before)))

    def _refuse_ambiguous(self, slot: Slot, options: tuple[Option, ...]) -> Open:
        count = len(slot.starts)
        shown = _format_spans(slot.starts[:_MAX_SHOWN], slot.size)
        more = f" and {count - _MAX_SHOWN} more" if count > _MAX_SHOWN else ""
        reason = f"fits in {count} places: lines {shown}{more}."
        return Open(self._build_refusal(slot, "ambiguous", reason, _MORE_CONTEXT, count), options)

    def _refuse_insertion(self, at: int) -> Open:
        """Refuse an insertion without context; most likely its line is meant, or else the end of the file."""
        slot, size = self._slots[at], len(self._target.lines)
        expected = self._expected[at]
        line = slot.line if expected is None else expected
        place = size if line is None else min(line, size)
        splice = Splice(place, place, slot.change.after, "exact")
        unresolved = self._build_refusal(
            slot,
            "open_intent",
            "only adds lines and quotes none of the file, so nothing shows where they belong.",
            "Put one or two lines of the file, each with a space before it, above or below the new lines.",
        )
        return Open(unresolved, (Option(splice, 0.6, f"{self._name_hunk(slot)} inserted above line {place + 1}"),))

    def _refuse_not_at_end(self, slot: Slot, found: Places) -> Open:
        where = _format_spans(found.starts[:_MAX_SHOWN_STALE], slot.size)
        placed = replace(slot, starts=found.starts, mappings=found.shifts, rung=found.rung)
        count = len(found.starts)
        options = _drop_missing(self._build_option(placed, start, 1, count) for start in found.starts[:_MAX_OPTIONS])
        unresolved = self._build_refusal(
            slot,
            "stale",
            f"should end with the file, but its lines stand at lines {where}.",
            "Leave the end-of-file marker out if other lines shall stay below.",
            count,
        )
        return Open(unresolved, options)

    def _build_option(self, slot: Slot, start: int, rank: int, count: int) -> Option | None:
        """Return the reading that takes a hunk at one of `count` places; None if nothing can be written there."""
        splice, doubt = build_splice(self._target, slot, start)
        if splice is None:
            return None
        score = 0.8 if doubt else 1 / count if slot.line is None else 0.6 * 0.5**rank
        return Option(splice, score, f"{self._name_hunk(slot)} taken at {format_span(start, start + slot.size)}")

    def _build_refusal(
        self, slot: Slot, code: ReasonCode, reason: str, suggestion: str, num_candidates: int = 0
    ) -> Unresolved:
        return Unresolved(code, f"{self._name_hunk(slot)} {reason}", num_candidates, suggestion=suggestion)

    def _name_hunk(self, slot: Slot) -> str:
        number = f"Hunk {slot.number + 1} of {self._total}" if self._total > 1 else "The hunk"
        return number if slot.line is None else f"{number} (line {slot.line + 1})"


def _rank_places(slot: Slot, expected: int | None) -> list[int]:
    """Return some places of a slot: nearest to its line first, without a line from the top."""
    starts = slot.starts
    line = slot.line if expected is None else expected
    if line is None:
        return list(starts[:_MAX_OPTIONS])
    row = bisect_left(starts, line)
    near = starts[max(0, row - _MAX_OPTIONS) : row + _MAX_OPTIONS]
    return sorted(near, key=lambda start: (abs(start - line), start))[:_MAX_OPTIONS]


def _format_spans(starts: Sequence[int], size: int) -> str:
    return ", ".join(f"{start + 1}-{start + size}" for start in starts)


def _drop_missing(options: Iterable[Option | None]) -> tuple[Option, ...]:
    return tuple(option for option in options if option is not None)


def merge_hunks(original: str, edit: ParsedEdit, language: str | None = None, *, compat: bool = False) -> MergeOutcome:
    r"""Return the outcome of hunks on a text with "\n" lines.

    The final newline is as the edit says if one of its hunks reaches the end of the file, else as it was. With `compat`
    the first match wins, as in Codex's apply_patch (`merge_as_codex`).
    """
    assert isinstance(edit.changes, tuple)
    if compat:
        return merge_as_codex(original, edit.changes)
    hunks = [(at, one) for at, one in enumerate(edit.changes) if _has_effect(one, edit.final_newline)]
    if not hunks:
        return AlreadyApplied("The edit changes no line.")
    target = Target(original, language)
    slots = find_slots_at_hints(target, hunks) or choose_places(find_slots(target, hunks), target)
    slots = mark_repeated(target, slots, edit.final_newline)
    resolutions = _resolve_slots(target, slots, Refusals(target, slots, len(edit.changes)))
    opened = next((one for one in resolutions if isinstance(one, Open)), None)
    if opened is not None:
        return replace(opened.unresolved, candidates=_list_candidates(target, resolutions))
    splices = [one for one in resolutions if isinstance(one, Splice)]
    return refuse_clash(splices) or _merge_splices(target, slots, splices, edit.final_newline)


def _has_effect(change: Replacement, final_newline: bool | None) -> bool:
    return change.before != change.after or (change.hint.at_end and final_newline is not None)


def _resolve_slots(target: Target, slots: Sequence[Slot], refusals: Refusals) -> list[Resolution]:
    all_done = all(slot.done for slot in slots)
    ordered = is_in_order(slots)
    resolutions: list[Resolution] = []
    for at, slot in enumerate(slots):
        if slot.chosen is None:
            resolutions.append(refusals.refuse_undecided(at))
        elif slot.done and not (ordered and (all_done or slot.proven)):
            resolutions.append(refusals.refuse_not_found(slot))
        elif slot.is_twin:
            resolutions.append(refusals.refuse_twin(slot, slot.chosen))
        elif not _is_in_scope(target, slot, slot.chosen):
            resolutions.append(refusals.refuse_out_of_scope(slot, slot.chosen))
        else:
            splice, doubt = build_splice(target, slot, slot.chosen)
            certain = splice if not doubt else None
            resolutions.append(certain or refusals.refuse_misspelled(slot, slot.chosen, splice, doubt))
    return resolutions


def _is_in_scope(target: Target, slot: Slot, start: int) -> bool:
    """Return whether a place is inside the hunk's scope, or need not be.

    A section heading beside line numbers may be out of date. A scope without a line number must be in the file.
    """
    named = slot.change.hint.scopes
    if not named or slot.rule in ("hint", "scope"):
        return True
    if not target.scopes.has_all(named):
        return slot.line is not None
    return target.scopes.contain(named, start, start + slot.size)


def _merge_splices(
    target: Target, slots: Sequence[Slot], splices: Sequence[Splice], final_newline: bool | None
) -> MergeOutcome:
    merged = apply_splices(target.lines, splices)
    assert merged is not None
    reaches_end = any(slot.chosen is not None and slot.chosen + slot.size == len(target.lines) for slot in slots)
    newline = final_newline if reaches_end and final_newline is not None else target.has_final_newline
    text = _join_lines(merged, final_newline=newline)
    if text == target.original:
        return AlreadyApplied("Every hunk's new lines already stand in the file.")
    rungs = {splice.rung for splice in splices if not splice.done} or {"exact"}
    return Merged(text, max(rungs, key=RUNGS.index), ops=build_ops(splices, len(target.lines)))


def _list_candidates(target: Target, resolutions: Sequence[Resolution]) -> tuple[Candidate, ...]:
    found = combine_candidates(target.lines, resolutions)
    newline = target.has_final_newline
    return tuple(replace(one, text=_join_lines(one.text.split("\n")[:-1], final_newline=newline)) for one in found)


def _join_lines(lines: Sequence[str], *, final_newline: bool) -> str:
    # A blank last line without a newline would be no line.
    ending = "\n" if lines and (final_newline or not lines[-1]) else ""
    return "\n".join(lines) + ending


_CODEX_ASCII = {
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"'),
    **dict.fromkeys(map(ord, "\u00a0\u202f\u205f\u3000"), " "),
    **dict.fromkeys(range(0x2002, 0x200B), " "),
}
_CODEX_KEYS: tuple[tuple[Rung, Callable[[str], str]], ...] = (
    ("exact", str),
    ("trailing_space", str.rstrip),
    ("reindent", str.strip),
    ("folded", lambda line: line.strip().translate(_CODEX_ASCII)),
)


def merge_as_codex(original: str, changes: Sequence[Replacement]) -> Merged | Unresolved:
    """Return the text that Codex's apply_patch writes, or its refusal.

    Hunks are looked for in order, each below the one before it. Lines are compared exactly, then without trailing
    blanks, then without blanks at both ends, then with typographic dashes, quotes and spaces as ASCII. The matched
    lines are replaced by the patch's own, context included. A scope is the next line below that equals it. A hunk
    without old lines is put at the end of the file. The result always ends with a newline. (openai/codex,
    codex-rs/apply-patch: lib.rs and seek_sequence.rs.)
    """
    lines = original.split("\n")
    if lines[-1] == "":
        lines.pop()
    at = 0
    rungs: set[Rung] = {"exact"}
    splices: list[tuple[int, int, tuple[str, ...]]] = []
    for change in changes:
        for scope in change.hint.scopes:
            found = _seek_as_codex(lines, (scope,), at, at_end=False)
            if found is None:
                return Unresolved("not_found", f"Failed to find context '{scope}'.")
            at = found[0] + 1
        if not change.before:
            end = len(lines) - (bool(lines) and not lines[-1])
            splices.append((end, 0, change.after))
            continue
        before, after = change.before, change.after
        found = _seek_as_codex(lines, before, at, at_end=change.hint.at_end)
        if found is None and not before[-1]:
            before, after = before[:-1], after[:-1] if after and not after[-1] else after
            found = _seek_as_codex(lines, before, at, at_end=change.hint.at_end)
        if found is None:
            return Unresolved(
                "not_found", "Failed to find expected lines.", nearest=describe_nearest(lines, change.before)
            )
        splices.append((found[0], len(before), after))
        rungs.add(found[1])
        at = found[0] + len(before)
    return Merged(_write_as_codex(lines, splices), max(rungs, key=RUNGS.index))


def _seek_as_codex(lines: Sequence[str], wanted: Sequence[str], start: int, *, at_end: bool) -> tuple[int, Rung] | None:
    if not wanted:
        return start, "exact"
    last = len(lines) - len(wanted)
    first = last if at_end else start
    for rung, key in _CODEX_KEYS:
        sought = [key(line) for line in wanted]
        for at in range(max(0, first), last + 1):
            if all(key(line) == one for line, one in zip(lines[at : at + len(wanted)], sought, strict=True)):
                return at, rung
    return None


def _write_as_codex(lines: list[str], splices: Sequence[tuple[int, int, tuple[str, ...]]]) -> str:
    for start, length, after in sorted(splices, key=lambda splice: splice[0])[::-1]:
        lines[start : start + length] = after
    return "\n".join(lines if lines and not lines[-1] else [*lines, ""])
