"""One SEARCH/REPLACE block looked for in a text: its one place and what is written there, or what is open about it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace

from editor.blocks.splices import MAX_CANDIDATES, Open, Option, Resolution, Splice
from editor.formats.placeholders import holds_placeholder
from editor.matching import fuzzy, hints
from editor.matching.eliding import elides, is_elision, resolve_elided
from editor.matching.folding import BLANKS
from editor.matching.index import exact
from editor.matching.ladder import LineIndex, Places, find
from editor.matching.nearest import shown
from editor.matching.spelling import Written, already_there, in_file_spelling
from editor.types import Replacement, Rung, Unresolved
from editor.wording import span_of

# Fewer letters and digits than this stand in a file by chance.
MIN_EVIDENCE = 8
_MAX_SHOWN_PLACES = 20
DONE = Splice(0, 0, (), "exact", done=True)


def resolve(index: LineIndex, change: Replacement) -> Resolution:
    """Return what one block does to the lines. What is not found is not explained yet: `explained` does that."""
    if change.verbatim is not None and index.by(exact).starts(change.verbatim.before):
        # The file itself has lines that begin with a number and a bar.
        return resolve(index, change.verbatim)
    if change.before == change.after:
        return DONE
    if not any(line.strip() for line in change.before):
        return _fill(index.lines, change)
    leaked = leaking(change.before, change.after)
    if leaked:
        return _of_leaking(index, change, leaked)
    found = _by_the_ladder(index, change)
    if found is not None:
        return found
    return (
        DONE if _stands(index, change) else Open(Unresolved("not_found", "The SEARCH lines do not stand in the file."))
    )


def leaking(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the placeholders of the new lines that the old ones do not have, at whatever indentation."""
    quoted = {line.strip() for line in before}
    return [line for line in after if holds_placeholder(line) and line.strip() not in quoted]


def leak(placeholder: str, of: str = "REPLACE lines") -> Unresolved:
    """Return why a change with a placeholder among its new lines is not made."""
    return Unresolved(
        "open_intent",
        f"The {of} hold the placeholder '{placeholder.strip()}'.",
        suggestion="Write out all lines that shall stand there.",
    )


def _of_leaking(index: LineIndex, change: Replacement, leaked: Sequence[str]) -> Resolution:
    """Placeholders in REPLACE are never written; they may stand for what those of SEARCH leave out.

    Those of SEARCH leave nothing out where the file holds them too.
    """
    literal = find(index, change.before) is not None
    elided = (
        None if literal or not elides(change) or not all(map(is_elision, leaked)) else resolve_elided(index, change)
    )
    return elided or Open(leak(leaked[0]))


def explained(index: LineIndex, change: Replacement, miss: Open) -> Open:
    """Return a miss with the nearest place, and the readings that are likely."""
    options, near = fuzzy.readings(index, change)
    nearest = shown(index.lines, change.before, near) if near is not None and near.likeness >= 50 else ""
    reason = miss.unresolved.reason
    suggestion = "Copy the SEARCH lines from the file as it is now; other blocks need not be sent again differently."
    plain = tuple(html.unescape(line) for line in change.before)
    if plain != change.before and find(index, plain) is not None:
        reason += " They do with their HTML escapes decoded, but escapes are taken as they are written."
        suggestion = "Send the characters themselves (<, >, &, quotes) where the file has them."
    unresolved = replace(
        miss.unresolved, reason=reason, nearest=nearest, suggestion=suggestion, num_candidates=len(options)
    )
    return Open(unresolved, options)


def _by_the_ladder(index: LineIndex, change: Replacement) -> Resolution | None:
    """Return what the strictest rung that finds the block makes of it; None if no rung does."""
    places = find(index, change.before)
    if places is not None:
        return _at_places(index, change, places)
    trimmed = _without_blank_slack(change)
    places = find(index, trimmed.before) if trimmed is not None else None
    if trimmed is not None and places is not None:
        rung: Rung = "trailing_space" if places.rung == "exact" else places.rung
        return _at_places(index, trimmed, replace(places, rung=rung))
    return resolve_elided(index, change) if elides(change) else None


def _at_places(index: LineIndex, change: Replacement, places: Places) -> Resolution:
    number = 0 if len(places.starts) == 1 else hints.choose(index.lines, places.starts, change.hint)
    if number is None:
        return _ambiguous(index, change, places)
    return _replace(index.lines, change, places, number)


def _without_blank_slack(change: Replacement) -> Replacement | None:
    """Return a block without blank lines at its ends, if SEARCH and REPLACE have the same: they then change nothing.

    Models like to begin both parts with a blank line that the file does not have.
    """
    before, after = _blank_ends(change.before), _blank_ends(change.after)
    if before != after or before == (0, 0):
        return None
    above, below = before
    return replace(
        change,
        before=change.before[above : len(change.before) - below],
        after=change.after[above : len(change.after) - below],
    )


def _blank_ends(lines: Sequence[str]) -> tuple[int, int]:
    solid = [at for at, line in enumerate(lines) if line.strip(BLANKS)]
    return (solid[0], len(lines) - 1 - solid[-1]) if solid else (-1, -1)


def _fill(lines: Sequence[str], change: Replacement) -> Resolution:
    """An empty SEARCH creates a file, or fills an empty one; in any other it does not say where."""
    blank = not any(line.strip() for line in lines)
    if blank and (not lines or not change.before or len(change.before) == len(lines)):
        return Splice(0, len(lines), change.after, "exact")
    if list(change.after) == list(lines):
        return DONE
    at_end = Splice(len(lines), len(lines), change.after, "exact")
    unresolved = Unresolved(
        "open_intent",
        "The SEARCH part is empty, but the file is not.",
        num_candidates=1,
        suggestion="Put a few lines of the file into SEARCH, and repeat them in REPLACE with the new lines.",
    )
    return Open(unresolved, (Option(at_end, 0.5, "REPLACE added at the end"),))


def _replace(lines: Sequence[str], change: Replacement, places: Places, number: int) -> Resolution:
    start = places.starts[number]
    end = start + len(change.before)
    found = lines[start:end]
    written = in_file_spelling(change, found, places.shifts[number], places.rung)
    if written is None:
        return Open(
            Unresolved(
                "not_found",
                f"SEARCH fits {span_of(start, end)} with another indentation, but REPLACE cannot be shifted to it.",
                suggestion="Indent the SEARCH and REPLACE lines exactly as the file does.",
            )
        )
    splice = Splice(start, end, written.lines, places.rung)
    if not written.sure:
        return _spelling_open(splice)
    if not already_there(lines, start, end, written.lines):
        return splice
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


def _spelling_open(splice: Splice) -> Open:
    unresolved = Unresolved(
        "open_intent",
        f"The SEARCH lines match {splice.where} but for characters that look alike (quotes, spaces, dashes), and the "
        "change itself touches those characters: which of them to write is open.",
        num_candidates=1,
        suggestion="Copy the SEARCH lines from the file with its own quotes, spaces and dashes; keep them in REPLACE.",
    )
    return Open(unresolved, (Option(splice, 0.8, f"the edit's own characters written at {splice.where}"),))


def _stands(index: LineIndex, change: Replacement) -> bool:
    """Tell whether REPLACE lines surely stand in the file, at one place, as an earlier application left them."""
    after = change.after
    if sum(char.isalnum() for line in after for char in line) < MIN_EVIDENCE:
        return False
    if [line for line in after if line.strip()] == [line for line in change.before if line.strip()]:
        # Only blank lines are to change, and SEARCH is wrong about just these.
        return False
    there = find(index, after)
    if there is None:
        as_written = Replacement(after, after)
        return elides(as_written) and isinstance(resolve_elided(index, as_written), Splice)
    return len(there.starts) == 1 and there.rung in ("exact", "trailing_space")


def _ambiguous(index: LineIndex, change: Replacement, places: Places) -> Open:
    size, total = len(change.before), len(places.starts)
    listed = ", ".join(f"{start + 1}-{start + size}" for start in places.starts[:_MAX_SHOWN_PLACES])
    more = f" and {total - _MAX_SHOWN_PLACES} more" if total > _MAX_SHOWN_PLACES else ""
    options: list[Option] = []
    for number in hints.by_distance(places.starts, change.hint, MAX_CANDIDATES):
        start = places.starts[number]
        written = in_file_spelling(change, index.lines[start : start + size], places.shifts[number], places.rung)
        if isinstance(written, Written):
            splice = Splice(start, start + size, written.lines, places.rung)
            options.append(Option(splice, 1 / total, f"SEARCH taken at {splice.where}"))
    unresolved = Unresolved(
        "ambiguous",
        f"The SEARCH lines stand in {total} places: lines {listed}{more}.",
        num_candidates=total,
        suggestion="Add lines above or below to SEARCH (and to REPLACE) until only one place fits.",
    )
    return Open(unresolved, tuple(options))
