"""Applies SEARCH/REPLACE blocks, changes by line numbers, and whole files.

Every block is looked for in the original, in any order; the places must not overlap. Models also send chains: a block
quotes what an earlier block writes, or changes a part of the same lines. Then the blocks are applied one after the
other. Where both ways work and differ, no rule decides.

Line numbers are those of the original, and the quoted lines must be at their numbers. A change that quotes nothing
cannot be checked, so it is only proposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from editor.diff import LineOp
from editor.errors import TooMuchWorkError, format_span
from editor.match.file_style import adapt_to_file
from editor.match.ladder import LineIndex, find_places, fold_line
from editor.match.near_miss import render_small_diff
from editor.placeholders import find_placeholders
from editor.search_replace.resolve import explain_miss, find_leaked_placeholders, refuse_leak, resolve
from editor.splices import (
    MAX_CANDIDATES,
    Open,
    Option,
    Resolution,
    Splice,
    apply_splices,
    build_ops,
    combine_candidates,
)
from editor.types import RUNGS, AlreadyApplied, Candidate, Merged, MergeOutcome, Replacement, Rung, Sketch, Unresolved

MAX_LINES_READ = 30_000_000
"""The lines read in all when blocks are applied one after the other: each block reads the whole text again."""

# At most so many blocks that are not found are explained; a model repairs them one by one anyway.
_MAX_EXPLAINED = 3


def merge_replacements(lines: list[str], changes: Sequence[Replacement], language: str | None = None) -> MergeOutcome:
    """Return the outcome of SEARCH/REPLACE blocks; every line of a merged text has an ending."""
    index = LineIndex(lines, language)
    resolutions = [
        resolve(index, change, grown) for change, grown in zip(changes, _sum_growth_above(changes), strict=True)
    ]
    missed = [at for at, one in enumerate(resolutions) if isinstance(one, Open)]
    if len(changes) > 1 and missed and _can_chain(index, changes, resolutions, missed[0]):
        in_turn = _merge_in_turn(index, changes, resolutions)
        if isinstance(in_turn, Merged | AlreadyApplied):
            return in_turn
    if missed:
        return _build_refusal(index, changes, resolutions, missed)
    splices = [one for one in resolutions if isinstance(one, Splice)]
    half_done = _refuse_half_done(lines, splices) or _refuse_unproven(lines, splices)
    if half_done is not None:
        return half_done
    together = _merge_together(lines, splices)
    if len(changes) == 1 or (isinstance(together, Merged) and _is_order_independent(index, changes, splices)):
        return together
    return _choose_reading(together, _merge_in_turn(index, changes, splices))


def build_outcome(
    lines: Sequence[str], merged: Sequence[str], rungs: set[Rung], ops: tuple[LineOp, ...] = ()
) -> MergeOutcome:
    """Return the outcome of merged lines; the loosest of the `rungs` that found places is its rung."""
    if not rungs or list(merged) == list(lines):
        return AlreadyApplied("Every block's REPLACE lines already stand in the file.")
    return Merged("".join(line + "\n" for line in merged), max(rungs, key=RUNGS.index), ops=ops)


def _refuse_half_done(lines: Sequence[str], splices: Sequence[Splice]) -> Unresolved | None:
    """Refuse blocks of which some are to be applied and others may be applied already; None if there are none.

    Such a block's SEARCH lines are in the file, and so are its new lines beside them. Sent for the first time, it wants
    its lines twice; sent again with others, it is applied. Nothing shows which.
    """
    again = [at for at, splice in enumerate(splices) if splice.again is not None]
    if not again or all(splice.done for splice in splices):
        return None
    readings: list[Resolution] = list(splices)
    for at in again:
        done = splices[at]
        assert done.again is not None
        made = replace(done, lines=done.again, done=False, again=None)
        options = (Option(done, 0.6, f"block {at + 1} is applied"), Option(made, 0.4, f"block {at + 1} applied again"))
        readings[at] = Open(Unresolved("open_intent", ""), options)
    return Unresolved(
        "open_intent",
        f"Block {again[0] + 1} of {len(splices)}: its new lines stand next to its SEARCH lines already, other blocks "
        "are not applied; whether they are wanted twice is open.",
        num_candidates=2 ** min(len(again), 3),
        suggestion="Send only the blocks that are still to be applied, or add lines above and below to SEARCH.",
        candidates=combine_candidates(lines, readings),
    )


def _sum_growth_above(changes: Sequence[Replacement]) -> list[int]:
    """Return for each block by how many lines the blocks above it lengthen the text; only blocks with a line count."""
    grown = [0] * len(changes)
    total = 0
    for _, at in sorted((change.hint.line, at) for at, change in enumerate(changes) if change.hint.line is not None):
        grown[at] = total
        total += len(changes[at].after) - len(changes[at].before)
    return grown


def _refuse_unproven(lines: Sequence[str], splices: Sequence[Splice]) -> Unresolved | None:
    """Refuse blocks to apply if another block only seems to be applied, as it must not be lost; else None."""
    unproven = next((at for at, splice in enumerate(splices) if splice.done and not splice.proven), None)
    if unproven is None or all(splice.done for splice in splices):
        return None
    splice = splices[unproven]
    option = Option(splice, 0.6, f"block {unproven + 1} is applied")
    readings = [Open(Unresolved("open_intent", ""), (option,)) if one is splice else one for one in splices]
    return Unresolved(
        "open_intent",
        f"Block {unproven + 1} of {len(splices)}: its SEARCH lines do not stand in the file, and its REPLACE "
        f"lines stand at {splice.location} already; other blocks are not applied, so that it may have missed its "
        "place.",
        num_candidates=1,
        suggestion="Send only the blocks that are still to be applied, or copy the SEARCH lines from the file.",
        candidates=combine_candidates(lines, readings),
    )


def _merge_together(lines: list[str], splices: Sequence[Splice]) -> MergeOutcome:
    # A block that was sent twice is made once.
    splices = list(dict.fromkeys(splices))
    merged = apply_splices(lines, splices)
    if merged is not None:
        rungs = {splice.rung for splice in splices if not splice.done}
        return build_outcome(lines, merged, rungs, build_ops(splices, len(lines)))
    ordered = sorted((splice for splice in splices if not splice.done), key=lambda splice: (splice.start, splice.end))
    above, below = next(pair for pair in pairwise(ordered) if pair[1].start < pair[0].end)
    same = (above.start, above.end) == (below.start, below.end)
    return Unresolved(
        "ambiguous" if same else "open_intent",
        f"Two blocks change the same lines: {above.location} and {below.location}.",
        num_candidates=2,
        suggestion="Join the two blocks into one.",
    )


def _merge_in_turn(index: LineIndex, changes: Sequence[Replacement], resolutions: Sequence[Resolution]) -> MergeOutcome:
    """Apply the blocks one after the other; `resolutions` are their effects on the original."""
    if len(index.lines) * len(changes) > MAX_LINES_READ:
        raise TooMuchWorkError(
            f"{len(changes)} blocks that build on one another, each looked for in {len(index.lines)} lines"
        )
    rungs: set[Rung] = set()
    original, seems_done = index.lines, False
    seen = {hash(tuple(original))}
    for change, before in zip(changes, resolutions, strict=True):
        splice = resolve(index, change)
        if isinstance(splice, Open):
            return splice.unresolved
        merged = apply_splices(index.lines, [splice])
        seems_done |= splice.done and not splice.proven and isinstance(before, Splice) and before.done
        if not splice.done and merged is not None:
            rungs.add(splice.rung)
            index = LineIndex(merged, index.language)
            if hash(tuple(merged)) in seen:
                return Unresolved("open_intent", "One block undoes what another one makes.")
            seen.add(hash(tuple(merged)))
    if seems_done and rungs:
        return Unresolved("open_intent", "Some blocks seem to be applied, and others are not.")
    return build_outcome(original, index.lines, rungs)


def _choose_reading(together: MergeOutcome, in_turn: MergeOutcome) -> MergeOutcome:
    """Choose between the blocks applied to the original and the blocks applied one after the other."""
    if isinstance(together, Unresolved):
        if together.code != "ambiguous" and not isinstance(in_turn, Unresolved):
            return in_turn
        if isinstance(in_turn, Merged):
            return replace(together, candidates=(Candidate(in_turn.text, 0.5, "blocks applied one after the other"),))
        return together
    if isinstance(in_turn, Merged) and isinstance(together, Merged) and in_turn.text != together.text:
        return Unresolved(
            "ambiguous",
            "The blocks give one text when each is looked for in the original, and another when applied in turn.",
            num_candidates=2,
            suggestion="Send blocks whose SEARCH lines do not depend on each other.",
            candidates=(
                Candidate(in_turn.text, 0.5, "blocks applied one after the other"),
                Candidate(together.text, 0.5, "all blocks looked for in the original"),
            ),
        )
    return together


def _build_refusal(
    index: LineIndex, changes: Sequence[Replacement], resolutions: list[Resolution], missed: Sequence[int]
) -> Unresolved:
    """Return why the first failed block fails, with the numbers of the other failed blocks."""
    explained_now = [at for at in missed if _is_unexplained(resolutions[at])][:_MAX_EXPLAINED]
    for at in explained_now:
        miss = resolutions[at]
        assert isinstance(miss, Open)
        resolutions[at] = explain_miss(index, changes[at], miss)
    first = resolutions[missed[0]]
    assert isinstance(first, Open)
    readings = combine_candidates(index.lines, resolutions)
    unresolved = replace(first.unresolved, candidates=readings[:MAX_CANDIDATES])
    if len(changes) == 1:
        return unresolved
    reason = f"Block {missed[0] + 1} of {len(changes)}: {unresolved.reason}"
    others = ", ".join(str(at + 1) for at in missed[1:11])
    if others:
        reason += f" Blocks that fail too: {others}{' and more' if len(missed) > 11 else ''}."
    suggestion = unresolved.suggestion
    if suggestion and len(missed) < len(changes):
        suggestion += " Send the other blocks as they are."
    return replace(unresolved, reason=reason, suggestion=suggestion)


def _is_unexplained(one: Resolution) -> bool:
    return isinstance(one, Open) and one.unresolved.code == "not_found" and not one.unresolved.suggestion


def _can_chain(index: LineIndex, changes: Sequence[Replacement], resolutions: Sequence[Resolution], first: int) -> bool:
    """Return whether a block that is not found may be found in what an earlier block writes."""
    miss = resolutions[first]
    if not isinstance(miss, Open) or miss.unresolved.code == "ambiguous" or _has_line_hints(changes):
        return False
    written = {fold_line(line) for change in changes[:first] for line in change.after}
    return any(fold_line(line) in written for line in changes[first].before if line.strip())


def _has_line_hints(changes: Sequence[Replacement]) -> bool:
    """Return whether the sender gave line numbers, which are those of the original."""
    return any(change.hint.line is not None for change in changes)


def _is_order_independent(index: LineIndex, changes: Sequence[Replacement], splices: Sequence[Splice]) -> bool:
    """Return whether applying the blocks in turn certainly gives the same text; False if that is not certain.

    It is certain if every block has a line that is unique in the original, under the loosest comparison, and that no
    other block writes, and if no two blocks near each other write the same line.
    """
    if _has_line_hints(changes):
        return True
    if any(splice.done or splice.rung == "elided" for splice in splices):
        return False
    places = index.key_by(fold_line).places
    written = Counter(key for splice in splices for key in {fold_line(line) for line in splice.lines})
    for change, splice in zip(changes, splices, strict=True):
        own = {fold_line(line) for line in splice.lines}
        keys = {fold_line(line) for line in change.before if line.strip()}
        if not any(len(places.get(key, ())) == 1 and written[key] == (key in own) for key in keys):
            return False
    reach = max(len(splice.lines) for splice in splices)
    ordered = sorted(splices, key=lambda splice: (splice.start, splice.end))
    return not any(
        below.start - above.end <= reach and _collect_added(index, above) & _collect_added(index, below)
        for above, below in pairwise(ordered)
    )


def _collect_added(index: LineIndex, splice: Splice) -> set[str]:
    stood = {fold_line(line) for line in index.lines[splice.start : splice.end]}
    return {key for line in splice.lines if any(map(str.isalnum, key := fold_line(line)))} - stood


def merge_whole(lines: Sequence[str], sketch: Sketch) -> MergeOutcome:
    """Return the lines sent as the whole file; refuse new placeholders.

    A placeholder is new if the file does not have it as often. Every line of the result has an ending.
    """
    (block,) = sketch.blocks
    stands = Counter(lines[at].strip() for at in find_placeholders(lines))
    sent = [block[at].strip() for at in sorted(find_placeholders(block))]
    new = next((line for line in sent if Counter(sent)[line] > stands[line]), None)
    if new is not None:
        return Unresolved(
            "open_intent",
            f"The edit was declared to be the whole file, but leaves lines out: it holds the placeholder '{new}'.",
            suggestion="Send all lines of the file, or send the edit as a lazy snippet.",
        )
    if list(block) == list(lines):
        return AlreadyApplied("The file already is what the edit says.")
    return Merged("".join(line + "\n" for line in block), "exact")


def merge_ranges(lines: list[str], changes: Sequence[Replacement]) -> MergeOutcome:
    """Return the outcome of changes by line numbers; every line of a merged text has an ending."""
    if _is_already_applied(lines, changes):
        return AlreadyApplied("The new lines already stand at their line numbers.")
    index = LineIndex(lines)
    resolutions = [_resolve_range(index, change) for change in changes]
    failed = next((at for at, one in enumerate(resolutions) if isinstance(one, Open)), None)
    if failed is not None:
        return _build_range_refusal(lines, resolutions, failed)
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
    rung = max((splice.rung for splice in splices), key=RUNGS.index)
    return Merged("".join(line + "\n" for line in merged), rung, ops=build_ops(splices, len(lines)))


def _get_first_line(change: Replacement) -> int:
    assert change.hint.line is not None
    return change.hint.line


def _resolve_range(index: LineIndex, change: Replacement) -> Resolution:
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
    """Propose a change without old lines; it is certain only at the very top or in an empty file."""
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
    """Refuse a change whose old lines are not at their numbers; show the lines there, and where the old ones are."""
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


def _build_range_refusal(lines: Sequence[str], resolutions: Sequence[Resolution], failed: int) -> Unresolved:
    first = resolutions[failed]
    assert isinstance(first, Open)
    one = first.unresolved
    reason = one.reason if len(resolutions) == 1 else f"Change {failed + 1} of {len(resolutions)}: {one.reason}"
    readings = combine_candidates(lines, resolutions)
    return Unresolved(one.code, reason, one.num_candidates, one.nearest, one.suggestion, readings)


def _is_already_applied(lines: Sequence[str], changes: Sequence[Replacement]) -> bool:
    """Return whether all new lines are where the changes would leave them, and some old lines are no longer there."""
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
