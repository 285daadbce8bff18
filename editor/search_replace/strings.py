"""Applies exact string replacement.

Characters are compared exactly. Only an old text that is not found and consists of whole lines is looked for on the
line ladder (`editor/match/ladder.py`), with the tolerance that a SEARCH block has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from editor.diff import LineOp, ops_of_changes
from editor.errors import TooMuchWorkError
from editor.execution import check_stopped
from editor.match.already_applied import TOO_SHORT, AppliedChange, describe_repeats, find_doubt, is_evidence, is_held
from editor.match.ladder import LineIndex
from editor.search_replace.resolve import explain_miss, find_leaked_placeholders, refuse_leak, resolve
from editor.splices import MAX_CANDIDATES, Open, apply_splices, build_ops, combine_candidates
from editor.types import (
    RUNGS,
    AlreadyApplied,
    Candidate,
    Merged,
    MergeOutcome,
    Replacement,
    Rung,
    Substitution,
    Substitutions,
    Unresolved,
)

_MAX_SHOWN_PLACES = 20
_NO_CHANGE = "The new text is the old text, or already stands in the file."


MAX_SCANNED_CHARS = 800_000_000
"""The characters that are searched for all old texts of one edit: each old text takes a pass over the whole text."""

MAX_COMPARED = 1_000_000
"""The comparisons that find out whether a new text that contains the old one is already around its places."""


@dataclass(frozen=True, slots=True)
class _Step:
    """The text after one substitution; `rung` is None if nothing was to be done, `proven` if that is certain.

    `ops` as in `Merged`.
    """

    text: str
    rung: Rung | None
    proven: bool = True
    ops: tuple[LineOp, ...] = ()


class _LastIndex:
    """The line index of the last text asked for; substitutions that are already applied leave the text as it is."""

    def __init__(self, language: str | None) -> None:
        self._language = language
        self._text: str | None = None
        self._lines = LineIndex(())

    def get(self, text: str) -> LineIndex:
        if text is not self._text:
            self._text, self._lines = text, LineIndex(text.removesuffix("\n").split("\n"), self._language)
        return self._lines


def merge_substitutions(text: str, changes: Substitutions, language: str | None = None) -> MergeOutcome:
    """Return the outcome of all substitutions, each applied to the result of those before it."""
    if len(text) * len(changes.items) > MAX_SCANNED_CHARS:
        raise TooMuchWorkError(f"{len(changes.items)} replacements, each looked for in {len(text)} characters")
    current = text
    rungs: set[Rung] = set()
    seem_done: list[int] = []
    index = _LastIndex(language)
    ops: tuple[LineOp, ...] = ()
    for number, item in enumerate(changes.items, 1):
        check_stopped()
        step = _substitute(current, item, index)
        if isinstance(step, Unresolved):
            return _number_refusal(step, number, len(changes.items), text, current)
        if item.old not in text and _is_undoing(item, changes.items[: number - 1]):
            return _refuse_undoing(number, len(changes.items))
        current = step.text
        rungs |= {step.rung} if step.rung else set()
        seem_done += [] if step.proven else [number]
        ops = step.ops if len(changes.items) == 1 else ()
    if not rungs or current == text:
        return AlreadyApplied(_NO_CHANGE)
    for number in seem_done:
        # A text that is there only because of the substitutions before is written by this edit.
        before = _substitute(text, changes.items[number - 1], index)
        if isinstance(before, _Step) and before.rung is None:
            return _refuse_unproven(number, len(changes.items), current)
    return Merged(current, max(rungs, key=RUNGS.index), ops=ops)


def _is_undoing(item: Substitution, earlier: Sequence[Substitution]) -> bool:
    """Return whether a substitution only deletes what an earlier one inserts."""
    old = item.old.strip()
    inserted = (one.new.replace(one.old, "", 1) for one in earlier if one.old and one.old in one.new)
    return bool(old) and not any(map(str.isalnum, item.new)) and any(old in text for text in inserted)


def _refuse_undoing(number: int, total: int) -> Unresolved:
    return Unresolved(
        "open_intent",
        f"Replacement {number} of {total} undoes what the ones before it make, so that its old text is rather meant "
        "to stand elsewhere.",
        suggestion="Copy the old text from the file as it is now, with more of the text around it.",
    )


def _refuse_unproven(number: int, total: int, made: str) -> Unresolved:
    return Unresolved(
        "open_intent",
        f"Replacement {number} of {total}: its new text stands in the file already and its old one does not stand by "
        "itself, but others are not applied; whether it is applied, or has missed its place, is open.",
        num_candidates=1,
        suggestion="Send only the replacements that are still to be made, with more of the text around them.",
        candidates=(Candidate(made, 0.6, f"replacement {number} is applied"),),
    )


def _number_refusal(step: Unresolved, number: int, total: int, text: str, current: str) -> Unresolved:
    """Return a refusal that names the substitution; its readings are whole results only if it is the last one."""
    if total == 1:
        return step
    last = number == total
    where = " (in the text that the ones before it made)" if current != text else ""
    return replace(
        step,
        reason=f"Replacement {number} of {total}{where}: {step.reason}",
        candidates=step.candidates if last else (),
    )


def _substitute(text: str, item: Substitution, index_of: _LastIndex) -> _Step | Unresolved:
    old, new = item.old, item.new
    if old == new:
        return _Step(text, None)
    # Dots by themselves may be a part of a line, such as a Python body.
    leaked = next(
        (line for line in find_leaked_placeholders(old.split("\n"), new.split("\n")) if line.strip(" .…")), None
    )
    if leaked is not None:
        return refuse_leak(leaked, "lines of the new text")
    if not old:
        return _fill_empty(text, new)
    places = _find_places(text, old)
    if not places:
        return _substitute_lines(text, item, index_of)
    if item.count is not None and item.count != len(places):
        return replace(
            _refuse_ambiguous(text, item, places),
            reason=f"The old text stands in {len(places)} places, and the edit expects {item.count}.",
            suggestion="Send the number of places at which the old text stands, or 'replace_all': true.",
        )
    offsets = _find_places(new, old)
    if len(places) * len(offsets) * (1 + len(new) // 1000) > MAX_COMPARED:
        raise TooMuchWorkError(f"{len(places)} places of an old text that the new one holds {len(offsets)} times")
    done = [at for at in places if any(text.startswith(new, at - offset) for offset in offsets if offset <= at)]
    if len(done) == len(places) and (item.replace_all or len(places) == 1):
        return _Step(text, None, proven=False) if _has_new_words(old, new) else _refuse_twice(text, item)
    if len(places) > 1 and not item.replace_all:
        return _refuse_ambiguous(text, item, places)
    if done:
        return _refuse_twice(text, item)
    return _Step(text.replace(old, new, len(places)), "exact", ops=_compute_line_ops(text, places, item))


def _fill_empty(text: str, new: str) -> _Step | Unresolved:
    """Apply a substitution with an empty old text, which creates a file or fills an empty one."""
    if not text.strip():
        return _Step(new, "exact")
    if text.rstrip("\n") == new.rstrip("\n"):
        return _Step(text, None)
    return Unresolved(
        "open_intent",
        "The old text is empty, but the file is not.",
        suggestion="Copy a part of the file into the old text, and repeat it in the new text with what is to be added.",
    )


def _find_places(text: str, old: str) -> list[int]:
    places: list[int] = []
    at = text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + len(old))
    return places


def _compute_line_ops(text: str, places: Sequence[int], item: Substitution) -> tuple[LineOp, ...]:
    """Return the line ops of writing the new text at all places."""
    grown = item.new.count("\n") - item.old.count("\n")
    keeps_below = item.old.endswith("\n") and (not item.new or item.new.endswith("\n"))
    changes: list[tuple[int, int, int]] = []
    line = seen = 0
    for at in places:
        first = line + text.count("\n", seen, at)
        seen = at + len(item.old)
        line = first + item.old.count("\n")
        at_start = at == 0 or text[at - 1] == "\n"
        end = line if keeps_below and (item.new or at_start) else line + 1
        if changes and first < changes[-1][1]:
            start, stop, size = changes.pop()
            end = line + 1
            changes.append((start, end, size + end - stop + grown))
        else:
            changes.append((first, end, end - first + grown))
    return ops_of_changes(changes, text.count("\n") + (not text.endswith("\n")))


def _has_new_words(old: str, new: str) -> bool:
    return any(char.isalnum() for char in new.replace(old, "", 1))


def _refuse_twice(text: str, item: Substitution) -> Unresolved:
    return Unresolved(
        "open_intent",
        "The new text already stands around the old one; whether it is wanted once more is open.",
        num_candidates=1,
        suggestion="Send more of the text above and below in both the old and the new text.",
        candidates=(Candidate(text.replace(item.old, item.new), 0.5, "replaced although the new text stands there"),),
    )


def _refuse_ambiguous(text: str, item: Substitution, places: Sequence[int]) -> Unresolved:
    rows = [text.count("\n", 0, at) + 1 for at in places[:_MAX_SHOWN_PLACES]]
    more = f" and {len(places) - len(rows)} more" if len(places) > len(rows) else ""
    readings = tuple(
        Candidate(text[:at] + item.new + text[at + len(item.old) :], 1 / len(places), f"replaced at line {row}")
        for at, row in zip(places[:MAX_CANDIDATES], rows, strict=False)
    )
    return Unresolved(
        "ambiguous",
        f"The old text stands in {len(places)} places: lines {', '.join(map(str, rows))}{more}.",
        num_candidates=len(places),
        suggestion="Send more of the text around it until only one place fits, or 'replace_all': true to change all.",
        candidates=readings,
    )


def _substitute_lines(text: str, item: Substitution, index_of: _LastIndex) -> _Step | Unresolved:
    """Apply a substitution whose old text is not in the text: it may be applied already, or match as whole lines."""
    change = item.to_replacement()
    final_newline = text.endswith("\n") or not text
    index = index_of.get(text)
    lines = index.lines
    stands = _find_new_text(text, index, item)
    if stands is not None and not stands.doubt:
        return _Step(text, None, stands.proven)
    found = resolve(index, change)
    if isinstance(found, Open):
        if found.unresolved.code == "not_found" and not found.unresolved.suggestion:
            found = explain_miss(index, change, found)
        told = "" if stands is None or "REPLACE lines stand" in found.unresolved.reason else stands.message
        found = replace(found, unresolved=replace(found.unresolved, reason=found.unresolved.reason + told))
        return _reword_refusal(found, lines, final_newline)
    if found.done:
        return _Step(text, None, found.proven)
    merged = apply_splices(lines, [found])
    assert merged is not None
    made = "".join(line + "\n" for line in merged).removesuffix("" if final_newline else "\n")
    return _Step(made, found.rung, ops=build_ops([found], len(lines)))


def _find_new_text(text: str, index: LineIndex, item: Substitution) -> AppliedChange | None:
    """Return where the new text is, and the doubt that this edit wrote it; None if it is not in the text."""
    old, new = item.old, item.new
    while old[:1] == new[:1] == "\n":
        # The line that ends above says nothing about the lines below.
        old, new = old[1:], new[1:]
    if not any(map(str.isalnum, new)) or new not in text:
        return None
    at, *others = _find_places(text, new)
    first, last = text.count("\n", 0, at), text.count("\n", 0, at + len(new.removesuffix("\n")))
    head = text[text.rfind("\n", 0, at) + 1 : at]
    tail = text[at + len(new) :].partition("\n")[0] if not new.endswith("\n") else ""
    whole = Replacement(tuple((head + old.removesuffix("\n") + tail).split("\n")), tuple(index.lines[first : last + 1]))
    if others and not item.replace_all:
        doubt = describe_repeats([text.count("\n", 0, other) + 1 for other in others])
    elif beside := _find_old_end(text, at, old, new):
        doubt = f"{beside!r} of the old text stands beside them"
    elif _is_cut_off(old, new):
        doubt = "the text to delete is at an end of the old text, so that nothing shows whether it is gone"
    else:
        doubt = find_doubt(index, whole, first) if is_evidence(old, new) else TOO_SHORT
    return AppliedChange(first, last + 1, "exact", doubt, proven=not doubt and is_held(whole))


def _find_old_end(text: str, at: int, old: str, new: str) -> str:
    """Return the old text's extra end that is beside the new text at `at`, "" if there is none.

    The extra end is what the first or last line of the old text has in addition to that of the new text. If it is
    beside the new text, that end of the edit seems not to be applied.
    """
    above, below = text[max(0, at - len(old)) : at], text[at + len(new) : at + len(new) + len(old)]
    first, last = old.partition("\n")[0], old.rpartition("\n")[2]
    head = first.removesuffix(new.partition("\n")[0])
    tail = last.removeprefix(new.rpartition("\n")[2])
    for part, is_beside in (
        (head, head != first and above.endswith(head)),
        (tail, tail != last and below.startswith(tail)),
    ):
        if "\n" in old and "\n" in new and is_beside and any(map(str.isalnum, part)):
            return part
    return ""


def _is_cut_off(old: str, new: str) -> bool:
    """Return whether text is only deleted, without words kept on both sides of it."""
    size = min(len(old), len(new))
    head = next((at for at in range(size) if old[at] != new[at]), size)
    tail = next((at for at in range(size - head) if old[-1 - at] != new[-1 - at]), size - head)
    kept = new[:head], new[len(new) - tail :]
    return head + tail == len(new) and not all(any(map(str.isalnum, part)) for part in kept)


def _reword_refusal(found: Open, lines: Sequence[str], final_newline: bool) -> Unresolved:
    unresolved = found.unresolved
    readings = tuple(
        one if final_newline else replace(one, text=one.text.removesuffix("\n"))
        for one in combine_candidates(lines, [found])
    )
    for ours, theirs in (
        ("The SEARCH lines do not stand", "The old text does not stand"),
        ("The SEARCH lines", "The lines of the old text"),
        ("The REPLACE lines", "The lines of the new text"),
        ("SEARCH", "the old text"),
    ):
        unresolved = replace(unresolved, reason=unresolved.reason.replace(ours, theirs))
    if unresolved.code == "not_found":
        advice = "Copy the old text from the file as it is now, character for character, blanks and quotes included."
        unresolved = replace(unresolved, suggestion=advice)
    return replace(unresolved, candidates=readings)
