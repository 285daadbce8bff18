"""Finds the one place of a SEARCH/REPLACE block, or says why there is none."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import replace

from editor.errors import format_span
from editor.match import near_miss
from editor.match.already_applied import AppliedChange, find_applied, find_applied_at, has_new_words, is_evidence
from editor.match.elision import has_elision, is_elision, resolve_elided
from editor.match.file_style import AdaptedLines, adapt_to_file, indent_first_line, is_already_there
from editor.match.ladder import BLANKS, LineIndex, Places, find_places, identity
from editor.match.near_miss import describe_place
from editor.placeholders import holds_placeholder
from editor.splices import MAX_CANDIDATES, Open, Option, Resolution, Splice
from editor.types import Replacement, Rung, Unresolved

_MAX_SHOWN_PLACES = 20
DONE = Splice(0, 0, (), "exact", done=True, proven=True)
_NOT_FOUND = "The SEARCH lines do not stand in the file."
_STRICT: tuple[Rung, ...] = ("exact", "trailing_space")


def resolve(index: LineIndex, change: Replacement, grown: int = 0) -> Resolution:
    """Return the effect of one block on the lines; `explain_miss` adds the reasons why a block is not found.

    `grown` is by how many lines the blocks above it lengthen the text. If the SEARCH lines are not in the file exactly,
    or not at their line number, the REPLACE lines are looked for first: an edit sent twice must not change another
    place the second time.
    """
    if change.verbatim is not None and index.key_by(identity).find_starts(change.verbatim.before):
        # The file itself has lines that begin with a number and a bar.
        return resolve(index, change.verbatim, grown)
    if change.before == change.after:
        return DONE
    if not any(line.strip() for line in change.before):
        return _fill_empty(index.lines, change)
    leaked = find_leaked_placeholders(change.before, change.after)
    if leaked:
        return _resolve_placeholders(index, change, leaked)
    trimmed = _strip_shared_blanks(change)
    places = find_places(index, change.before)
    line = change.hint.line
    expected = () if line is None else (line, line + grown)
    if places is None and trimmed is not None and (places := find_places(index, trimmed.before)) is not None:
        # The blank lines may tell the place where the edit was made from one where its lines still stand.
        stands = _find_new_lines(index, change, expected)
        change, places = trimmed, replace(places, rung="trailing_space" if places.rung == "exact" else places.rung)
        if stands is not None and stands.rung in _STRICT:
            trimmed_place = _resolve_places(index, change, places)
            if isinstance(trimmed_place, Splice):
                return _refuse_twin(trimmed_place, stands)
            return _add_hint(trimmed_place, stands)
    if places is not None and places.rung in _STRICT:
        done = None if line is None or line in places.starts else find_applied_at(index.lines, change, expected)
        if done is not None and not done.doubt:
            return _build_done_splice(index, done)
        at_place = _resolve_places(index, change, places)
        return at_place if done is None or isinstance(at_place, Open) else _refuse_twin(at_place, done)
    stands = _find_new_lines(index, change, expected)
    if stands is not None and not stands.doubt:
        return _build_done_splice(index, stands)
    found = _resolve_loosely(index, change, places)
    if stands is None or stands.rung not in _STRICT or not (found is None or has_new_words(change)):
        return found or Open(Unresolved("not_found", _NOT_FOUND + ("" if stands is None else stands.message)))
    return _refuse_twin(found, stands) if isinstance(found, Splice) else _add_hint(found, stands)


def find_leaked_placeholders(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the placeholders of the new lines that the old ones do not have, at whatever indentation."""
    quoted = {line.strip() for line in before}
    return [line for line in after if holds_placeholder(line) and line.strip() not in quoted]


def refuse_leak(placeholder: str, of: str = "REPLACE lines") -> Unresolved:
    """Return the refusal of a change that has a placeholder among its new lines."""
    return Unresolved(
        "open_intent",
        f"The {of} hold the placeholder '{placeholder.strip()}'.",
        suggestion="Write out all lines that shall stand there.",
    )


def _resolve_placeholders(index: LineIndex, change: Replacement, leaked: Sequence[str]) -> Resolution:
    """Resolve a block with placeholders in REPLACE, which are never written.

    They may stand for the lines that the placeholders of SEARCH leave out. If the file has those of SEARCH too, they
    are text and leave nothing out.
    """
    literal = find_places(index, change.before) is not None
    elided = (
        None
        if literal or not has_elision(change) or not all(map(is_elision, leaked))
        else resolve_elided(index, change)
    )
    return elided or Open(refuse_leak(leaked[0]))


def explain_miss(index: LineIndex, change: Replacement, miss: Open) -> Open:
    """Return a block that is not found with its nearest place and its likely readings."""
    options, near = near_miss.find_readings(index, change)
    nearest = describe_place(index.lines, change.before, near) if near is not None and near.likeness >= 50 else ""
    reason = miss.unresolved.reason
    suggestion = "Copy the SEARCH lines from the file as it is now."
    plain = tuple(html.unescape(line) for line in change.before)
    if plain != change.before and find_places(index, plain) is not None:
        reason += " They do with their HTML escapes decoded, but escapes are taken as they are written."
        suggestion = "Send the characters themselves (<, >, &, quotes) where the file has them."
    unresolved = replace(
        miss.unresolved, reason=reason, nearest=nearest, suggestion=suggestion, num_candidates=len(options)
    )
    return Open(unresolved, options)


def _resolve_loosely(index: LineIndex, change: Replacement, places: Places | None) -> Resolution | None:
    """Return the effect of a block on the rungs below the strict ones; None if none finds it."""
    if places is not None:
        return _resolve_places(index, change, places)
    first = indent_first_line(index, change)
    if first is not None:
        found = find_places(index, first.before)
        return None if found is None else _resolve_places(index, first, replace(found, rung="reindent"))
    return resolve_elided(index, change) if has_elision(change) else None


def _find_new_lines(index: LineIndex, change: Replacement, expected: Collection[int]) -> AppliedChange | None:
    """Return where the REPLACE lines are, with or without `...`; None if they are not in the file."""
    after = Replacement(change.after, change.after)
    if not has_elision(after) or find_places(index, change.after) is not None:
        stands = find_applied(index, change, expected)
        whole = indent_first_line(index, after) if stands is None else None
        return stands if whole is None else find_applied(index, replace(change, after=whole.after), expected)
    new = [line for line in change.after if line not in change.before and any(map(str.isalnum, line))]
    elided = resolve_elided(index, after) if new and is_evidence("", "".join(change.after)) else None
    return AppliedChange(elided.start, elided.end, "elided") if isinstance(elided, Splice) else None


def _build_done_splice(index: LineIndex, stands: AppliedChange) -> Splice:
    lines = tuple(index.lines[stands.start : stands.end])
    return Splice(stands.start, stands.end, lines, stands.rung, done=True, proven=stands.proven)


def _refuse_twin(found: Splice, stands: AppliedChange) -> Resolution:
    """Refuse to change a place that is only similar to SEARCH while the new lines may be in the file already."""
    if found.done:
        return found
    unresolved = Unresolved(
        "open_intent",
        f"The SEARCH lines stand at {found.location}, but not as the edit says.{stands.message}",
        num_candidates=1,
        suggestion="If the edit is made already, leave this block out; else copy the SEARCH lines from the file.",
    )
    return Open(unresolved, (Option(found, 0.5, f"SEARCH taken at {found.location}"),))


def _add_hint(found: Open | None, stands: AppliedChange) -> Open:
    """Return a refusal that also says where the new lines are already."""
    if found is None:
        return Open(Unresolved("not_found", _NOT_FOUND + stands.message))
    return replace(found, unresolved=replace(found.unresolved, reason=found.unresolved.reason + stands.message))


def _resolve_places(index: LineIndex, change: Replacement, places: Places) -> Resolution:
    number = 0 if len(places.starts) == 1 else near_miss.choose_place(index.lines, places.starts, change.hint)
    if number is None:
        return _refuse_ambiguous(index, change, places)
    return _replace_lines(index, change, places, number)


def _strip_shared_blanks(change: Replacement) -> Replacement | None:
    """Return a block without the blank lines that SEARCH and REPLACE share at their ends; None if they share none.

    Models like to begin both parts with a blank line that the file does not have.
    """
    above, below = _count_shared_blanks(change)
    if not above and not below:
        return None
    return replace(
        change,
        before=change.before[above : len(change.before) - below],
        after=change.after[above : len(change.after) - below],
    )


def _count_shared_blanks(change: Replacement) -> tuple[int, int]:
    """Return how many blank lines SEARCH and REPLACE both begin and end with; (0, 0) if the numbers differ."""
    before, after = _count_blank_ends(change.before), _count_blank_ends(change.after)
    return before if before == after != (-1, -1) else (0, 0)


def _count_blank_ends(lines: Sequence[str]) -> tuple[int, int]:
    solid = [at for at, line in enumerate(lines) if line.strip(BLANKS)]
    return (solid[0], len(lines) - 1 - solid[-1]) if solid else (-1, -1)


def _fill_empty(lines: Sequence[str], change: Replacement) -> Resolution:
    """Resolve a block with an empty SEARCH: it creates or fills an empty file, and has no place in any other."""
    blank = not any(line.strip() for line in lines)
    if blank and (not lines or not change.before or len(change.before) == len(lines)):
        return Splice(0, len(lines), change.after, "exact")
    if list(change.after) == list(lines):
        return DONE
    line = change.hint.line
    place = len(lines) if line is None else min(line, len(lines))
    there = Splice(place, place, change.after, "exact")
    where = "at the end" if line is None else f"above line {place + 1}"
    unresolved = Unresolved(
        "open_intent",
        "The SEARCH part is empty, but the file is not: nothing shows where the REPLACE lines belong.",
        num_candidates=1,
        suggestion="Put a few lines of the file into SEARCH, and repeat them in REPLACE with the new lines.",
    )
    return Open(unresolved, (Option(there, 0.5, f"REPLACE added {where}"),))


def _replace_lines(index: LineIndex, change: Replacement, places: Places, number: int) -> Resolution:
    lines = index.lines
    start = places.starts[number]
    end = start + len(change.before)
    found = lines[start:end]
    held = change.hint.line == start
    yaml = index.language == "yaml"
    written = adapt_to_file(change, found, places.shifts[number], places.rung, held=held, yaml=yaml)
    if written is None:
        return Open(
            Unresolved(
                "not_found",
                f"SEARCH fits {format_span(start, end)} with another indentation, but REPLACE cannot be shifted to it.",
                suggestion="Indent the SEARCH and REPLACE lines exactly as the file does.",
            )
        )
    splice = Splice(start, end, written.lines, places.rung)
    above, below = _count_shared_blanks(change)
    solid = written.lines[above : len(written.lines) - below]
    if not is_already_there(lines, start + above, end - below, solid):
        return splice if written.sure else _refuse_spelling(splice, written.doubt)
    added = [line for line in written.lines if line not in found]
    if any(char.isalnum() for line in added for char in line):
        return Splice(start, end, tuple(found), places.rung, done=True, again=written.lines)
    unresolved = Unresolved(
        "open_intent",
        f"Line {start + 1} already stands among the REPLACE lines; whether they are wanted twice is open.",
        num_candidates=1,
        suggestion="Add the lines below or above to SEARCH.",
    )
    return Open(unresolved, (Option(splice, 0.5, "REPLACE written although its lines stand there"),))


def _refuse_spelling(splice: Splice, doubt: str) -> Open:
    unresolved = Unresolved(
        "open_intent",
        f"The SEARCH lines match {splice.location} but {doubt}.",
        num_candidates=1,
        suggestion="Copy the SEARCH lines from the file as they stand, indentation, quotes, spaces and dashes "
        "included, and write REPLACE alike.",
    )
    return Open(unresolved, (Option(splice, 0.8, f"the edit's lines written at {splice.location}"),))


def _refuse_ambiguous(index: LineIndex, change: Replacement, places: Places) -> Open:
    size, total = len(change.before), len(places.starts)
    listed = ", ".join(f"{start + 1}-{start + size}" for start in places.starts[:_MAX_SHOWN_PLACES])
    more = f" and {total - _MAX_SHOWN_PLACES} more" if total > _MAX_SHOWN_PLACES else ""
    options: list[Option] = []
    for number in near_miss.sort_by_distance(places.starts, change.hint, MAX_CANDIDATES):
        start = places.starts[number]
        written = adapt_to_file(change, index.lines[start : start + size], places.shifts[number], places.rung)
        if isinstance(written, AdaptedLines):
            splice = Splice(start, start + size, written.lines, places.rung)
            options.append(Option(splice, 1 / total, f"SEARCH taken at {splice.location}"))
    unresolved = Unresolved(
        "ambiguous",
        f"The SEARCH lines stand in {total} places: lines {listed}{more}.",
        num_candidates=total,
        suggestion="Add lines above or below to SEARCH (and to REPLACE) until only one place fits.",
    )
    return Open(unresolved, tuple(options))
