"""Cheap checks of every merged text, made by a rule or by a model.

    marker_leak          a placeholder is in the result, and not in the original (nor in the added lines of a diff)
    added_lines_present  a literal line (of a substitution: the new text) is missing from the result
    symbols_kept         a definition is gone that the edit neither names nor shows to be gone
    lines_removed        too large a share of the file is gone without the edit showing it
    elided_lines_kept    lines that a placeholder stands for are gone, and nothing replaces them
    parse_errors         the grammar fails at more lines than it did in the original
    no_op                nothing changed although the edit asks for a change
    truncated_tail       generation was cut short, the end of the file is missing, or the file was emptied
    accounted            a changed line is in no legal reading of the edit (`editor.attribution`)

All are always present, in this order; a check that does not apply says 'not applicable' and holds.

The strict policy rejects a merge if any of them fails. The lenient policy trusts the sender about what is removed and
what parses (symbols_kept, lines_removed, elided_lines_kept and parse_errors are reported only), and rejects what nobody
can have meant: marker_leak, added_lines_present, no_op, truncated_tail, accounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from editor.attribution import Attribution, attribute_changes
from editor.checks import (
    Losses,
    check_elided_lines,
    check_removed_lines,
    check_symbols,
    check_tail,
    drop_shown_removals,
    find_removals,
)
from editor.diff import count_common_ends
from editor.errors import NOT_APPLICABLE, SHOWN, format_list
from editor.placeholders import find_placeholders, holds_placeholder
from editor.required_lines import count_required, find_missing_lines, find_missing_texts
from editor.syntax import Survey, survey
from editor.types import Check, ParsedEdit, Policy, Sketch, Substitutions, UnaccountedLine

DAMAGE = frozenset({"marker_leak", "added_lines_present", "no_op", "truncated_tail", "accounted", "region_kept"})
"""The checks that reject a merge under the lenient policy, too; `region_kept` is of `editor.scope`."""

# A template or a dialect (front matter, macros) breaks the grammar everywhere; there new errors say nothing.
MAX_ERRORS_BEFORE = 2
MAX_ERROR_SHARE = 0.01

MAX_PARSED = 500_000
"""Characters up to which both texts are parsed for an explicit edit that a rule applied to the letter: no syntax error
rejects it, and two parses of a megabyte take up to 2.5 s."""

MAX_LINES = 10
"""Lines that the check `accounted` names at most."""


def verify(
    original: str,
    merged: str,
    edit: ParsedEdit,
    language: str | None,
    *,
    truncated: bool = False,
    instructions: tuple[str, ...] = (),
    by_model: bool = False,
    endings: Sequence[int] = (),
) -> tuple[Check, ...]:
    r"""Return all checks of one merged text.

    Both texts have "\n" lines. `truncated` says that generation was cut; `instructions` are texts outside of the edit
    that may say what is to be removed; `by_model` says that a model made the text; `endings` are the kept lines (from
    0) that would be written with another line ending than they have.
    """
    old, new = original.split("\n"), merged.split("\n")
    reading = attribute_changes(original, merged, edit, language, instructions, by_model=by_model)
    is_explicit = not isinstance(edit.changes, Sketch) or edit.changes.complete
    to_the_letter = is_explicit and not reading.faults
    takes_word = to_the_letter and not by_model and len(original) > MAX_PARSED
    before = None if takes_word else survey(original, language)
    after = survey(merged, language) if before is not None else None
    as_sent = _is_the_edit_itself(original, new, edit)
    worse = before is not None and after is not None and len(after.error_lines) > len(before.error_lines)
    if to_the_letter and by_model and worse:
        # A model may put a text at a similar place; its text may still be the edit to the letter.
        to_the_letter = not attribute_changes(original, merged, edit, language, instructions).faults
    gone = drop_shown_removals(find_removals(old, new, edit), old, edit)
    losses = Losses(old, new, edit, gone, before, after, as_sent, worse, not reading.faults)
    return (
        _check_marker_leak(old, new, edit),
        _check_added_lines(merged, new, edit, not reading.faults),
        check_symbols(losses),
        check_removed_lines(losses),
        check_elided_lines(losses),
        _check_parse_errors(before, after, len(old), as_sent or to_the_letter),
        _check_no_op(original, merged, edit),
        check_tail(losses, truncated),
        _check_accounted(reading, new, endings),
    )


def is_accepted(checks: Sequence[Check], policy: Policy = "strict") -> bool:
    """Return whether a merge is accepted: every check held, or with "lenient" every one of `DAMAGE`."""
    return all(check.ok or (policy == "lenient" and check.name not in DAMAGE) for check in checks)


def _check_marker_leak(old: Sequence[str], new: Sequence[str], edit: ParsedEdit) -> Check:
    first, rest = count_common_ends(old, new)
    changed = new[first : len(new) - rest]
    # Only new lines are checked: a file may hold placeholders of its own.
    added = Counter(map(str.strip, changed)) - Counter(map(str.strip, old[first : len(old) - rest]))
    if edit.format == "udiff":
        # Tools write diffs line by line: a line that looks like a placeholder is text of the file.
        added -= Counter(map(str.strip, edit.new_lines))
    leaked = [line.strip() for line in changed if line.strip() in added and holds_placeholder(line)]
    if "..." in added and "..." not in map(str.strip, edit.new_lines):
        leaked += ["..." for at in find_placeholders(new) if new[at].strip() == "..." != new[at]]
    return Check("marker_leak", not leaked, format_list("placeholders in the result", leaked) or "no placeholder")


def _check_accounted(reading: Attribution, new: Sequence[str], endings: Sequence[int]) -> Check:
    if endings:
        changed = (UnaccountedLine(at + 1, "ending", new[at] if at < len(new) else "") for at in endings)
        reading = replace(reading, faults=(*reading.faults, *changed))
    if not reading.faults:
        return Check("accounted", True, "the edit accounts for every changed line")
    if reading.bound:
        detail = f"the readings of the edit are too many to try (bound '{reading.bound}')"
    else:
        named = [f"{fault.kind} {fault.text.strip()!r}" for fault in reading.faults]
        detail = format_list("not accounted for by the edit", named)
    return Check("accounted", False, detail, reading.faults[:MAX_LINES])


def _check_added_lines(merged: str, new: Sequence[str], edit: ParsedEdit, is_accounted: bool) -> Check:
    if is_accounted:
        return Check("added_lines_present", True, "every line of the edit stands where a reading has it")
    if isinstance(edit.changes, Substitutions):
        missing = [text.split("\n")[0] for text in find_missing_texts(merged, edit.changes)]
        found = f"{len(edit.changes.items)} texts found"
    else:
        missing = find_missing_lines(new, edit)
        found = f"{count_required(edit)} lines found"
    return Check("added_lines_present", not missing, format_list("missing lines", missing) or found)


def _check_parse_errors(before: Survey | None, after: Survey | None, num_lines: int, as_sent: bool) -> Check:
    if before is None or after is None:
        return Check("parse_errors", True, f"{NOT_APPLICABLE}: no grammar for this text, or it is too large")
    detail = f"{len(after.error_lines)} syntax errors, {len(before.error_lines)} before"
    if len(after.error_lines) <= len(before.error_lines):
        return Check("parse_errors", True, detail)
    if len(before.error_lines) > max(MAX_ERRORS_BEFORE, MAX_ERROR_SHARE * num_lines):
        return Check("parse_errors", True, f"{NOT_APPLICABLE}: the grammar does not fit this file ({detail})")
    if as_sent:
        return Check("parse_errors", True, f"{detail}; the result is the edit to the letter")
    known = set(before.error_lines)
    new = [line for line in after.error_lines if line not in known] or after.error_lines
    where = ", ".join(str(line + 1) for line in new[:SHOWN])
    return Check("parse_errors", False, f"{detail}; now at lines {where}")


def _is_the_edit_itself(original: str, new: Sequence[str], edit: ParsedEdit) -> bool:
    """Return whether the edit is the whole result, so that all its faults were sent."""
    if isinstance(edit.changes, Substitutions):
        return False
    if isinstance(edit.changes, Sketch):
        sent = edit.changes.blocks[0] if len(edit.changes.blocks) == 1 else ()
    else:
        sent = () if original.strip() else edit.new_lines
    return bool(sent) and _text(sent) == _text(new)


def _text(lines: Sequence[str]) -> str:
    return "\n".join(map(str.rstrip, lines)).strip("\n")


def _check_no_op(original: str, merged: str, edit: ParsedEdit) -> Check:
    if original != merged:
        return Check("no_op", True, "the text changed")
    if isinstance(edit.changes, Sketch):
        stands = set(map(str.strip, original.split("\n")))
        asked = any(line.strip() and line.strip() not in stands for line in edit.new_lines)
    else:
        asked = edit.new_lines != edit.old_lines
    return Check("no_op", not asked, "nothing changed although the edit asks for it" if asked else "nothing to change")
