"""Applies changes by line numbers where the quoted lines stand at their numbers.

All numbers are those of the original. A change that quotes nothing cannot be checked, so that it is only proposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from editor.errors import format_span
from editor.match.file_style import adapt_to_file
from editor.match.ladder import LineIndex, find_places
from editor.match.near_miss import render_small_diff
from editor.search_replace.resolve import find_leaked_placeholders, refuse_leak
from editor.splices import Open, Option, Resolution, Splice, apply_splices, build_ops, combine_candidates
from editor.types import AlreadyApplied, Merged, MergeOutcome, Replacement, Rung, Unresolved

_RUNGS_AT_PLACE: tuple[Rung, ...] = ("exact", "trailing_space", "reindent", "folded")


def merge_ranges(lines: list[str], changes: Sequence[Replacement]) -> MergeOutcome:
    """Return the merged text, every line with an ending, or why there is none."""
    if _is_already_applied(lines, changes):
        return AlreadyApplied("The new lines already stand at their line numbers.")
    index = LineIndex(lines)
    resolutions = [_resolve(index, change) for change in changes]
    failed = next((at for at, one in enumerate(resolutions) if isinstance(one, Open)), None)
    if failed is not None:
        return _build_refusal(lines, resolutions, failed)
    splices = [one for one in resolutions if isinstance(one, Splice)]
    merged = apply_splices(lines, splices)
    if merged is None:
        return Unresolved(
            "open_intent",
            "Two changes name the same lines.",
            suggestion="Join them into one, with the numbers that the lines have before the edit.",
        )
    if merged == lines:
        return AlreadyApplied("The new lines are the old lines.")
    rung = max((splice.rung for splice in splices), key=_RUNGS_AT_PLACE.index)
    return Merged("".join(line + "\n" for line in merged), rung, ops=build_ops(splices, len(lines)))


def _get_first_line(change: Replacement) -> int:
    assert change.hint.line is not None
    return change.hint.line


def _resolve(index: LineIndex, change: Replacement) -> Resolution:
    start = _get_first_line(change)
    end = start + (len(change.before) or change.hint.num_unseen)
    lines = index.lines
    leaked = find_leaked_placeholders(change.before, change.after)
    if leaked:
        return Open(refuse_leak(leaked[0], "new lines"))
    if end > len(lines):
        return _refuse_stale(
            index, change, f"The file ends with line {len(lines)}; the edit names line {max(end, start + 1)}."
        )
    if not change.before:
        return _propose_unchecked(lines, Splice(start, end, change.after, "exact"))
    found = lines[start:end]
    places = find_places(found, change.before) if any(line.strip() for line in change.before) else None
    if list(found) == list(change.before):
        return Splice(start, end, change.after, "exact")
    written = None
    if places is not None:
        written = adapt_to_file(change, found, places.shifts[0], places.rung)
    if places is None or written is None or not written.sure:
        return _refuse_stale(index, change, f"The old lines of the edit do not stand at {format_span(start, end)}.")
    return Splice(start, end, written.lines, places.rung)


def _propose_unchecked(lines: Sequence[str], splice: Splice) -> Resolution:
    """Nothing says that the numbers are right, except for lines at the very top or in an empty file."""
    if splice.end == splice.start == 0 or not any(line.strip() for line in lines):
        return splice
    shown = lines[splice.start : splice.end] if splice.end > splice.start else lines[splice.start - 1 : splice.start]
    what = splice.location if splice.end > splice.start else f"line {splice.start}"
    unresolved = Unresolved(
        "open_intent",
        f"The edit gives line numbers without the old lines, so that nothing shows whether {what} is meant.",
        num_candidates=1,
        nearest="\n".join([f"{what} now:", *("  " + line for line in shown[:12])]),
        suggestion="Send the old lines too, as 'old'.",
    )
    return Open(unresolved, (Option(splice, 0.5, f"line numbers taken as given: {splice.location}"),))


def _refuse_stale(index: LineIndex, change: Replacement, reason: str) -> Open:
    """Show what stands at the numbers, and where the old lines stand instead, if that is one place."""
    start, size = _get_first_line(change), len(change.before)
    stands = index.lines[start : start + size]
    nearest = ""
    if stands and size:
        diff = render_small_diff(change.before, stands, start)
        nearest = "\n".join([f"{format_span(start, start + len(stands))} ('-' was sent, '+' is in the file):", *diff])
    options: tuple[Option, ...] = ()
    places = find_places(index, change.before) if any(line.strip() for line in change.before) else None
    if places is not None and len(places.starts) == 1:
        at = places.starts[0]
        written = adapt_to_file(change, index.lines[at : at + size], places.shifts[0], places.rung)
        reason += f" They stand at {format_span(at, at + size)}."
        if written is not None:
            splice = Splice(at, at + size, written.lines, places.rung)
            options = (Option(splice, 0.9, f"the old lines taken where they stand, at {splice.location}"),)
    elif places is not None:
        reason += f" They stand in {len(places.starts)} other places."
    suggestion = "Read the file again, and send the numbers and lines that it has now."
    return Open(Unresolved("stale", reason, len(options), nearest, suggestion), options)


def _build_refusal(lines: Sequence[str], resolutions: Sequence[Resolution], failed: int) -> Unresolved:
    first = resolutions[failed]
    assert isinstance(first, Open)
    one = first.unresolved
    reason = one.reason if len(resolutions) == 1 else f"Change {failed + 1} of {len(resolutions)}: {one.reason}"
    readings = combine_candidates(lines, resolutions)
    return Unresolved(one.code, reason, one.num_candidates, one.nearest, one.suggestion, readings)


def _is_already_applied(lines: Sequence[str], changes: Sequence[Replacement]) -> bool:
    """Tell whether every change's new lines stand where it leaves them, and not all of its old ones where they were."""
    if all(_has_old_lines(lines, change) for change in changes):
        return False
    moved = evidence = 0
    quotes = False
    for change in sorted(changes, key=_get_first_line):
        start, size = _get_first_line(change) + moved, len(change.before) or change.hint.num_unseen
        if tuple(lines[start : start + len(change.after)]) != change.after:
            return False
        moved += len(change.after) - size
        evidence += sum(char.isalnum() for line in change.after if line not in change.before for char in line)
        quotes = quotes or bool(change.before)
    return quotes and evidence > 0


def _has_old_lines(lines: Sequence[str], change: Replacement) -> bool:
    start = _get_first_line(change)
    return bool(change.before) and tuple(lines[start : start + len(change.before)]) == change.before
