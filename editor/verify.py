"""Cheap checks on every merged text, whoever made it: a rule, or a model.

    marker_leak          a placeholder stands in the result, and did not in the original
    added_lines_present  a literal line of the edit is missing from the result
    symbols_kept         a definition is gone that the edit neither names nor shows to be gone
    lines_removed        too large a share of the file is gone without the edit showing it
    elided_lines_kept    lines that a placeholder stands for are gone, and nothing stands in their place
    parse_errors         the grammar fails at more lines than it did in the original
    no_op                nothing changed although the edit asks for a change
    truncated_tail       generation was cut short, or the end of the file is missing

All are always present, in this order; one that cannot be made says 'not applicable' and holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rapidfuzz import fuzz

from editor.evidence import Removal, removals
from editor.formats.placeholders import holds_placeholder, placeholder_lines
from editor.syntax import Survey, Symbol, survey
from editor.types import Check, ParsedEdit, Sketch, Substitutions

MAX_REMOVED_SHARE = 0.6
MIN_LINES_FOR_SHARE = 10
# A template or a dialect (front matter, macros) breaks the grammar everywhere; there new errors say nothing.
MAX_ERRORS_BEFORE = 2
MAX_ERROR_SHARE = 0.01
_TAIL_LINES = 3
_SHOWN = 5
_NOT_APPLICABLE = "not applicable"


def verify(
    original: str, merged: str, edit: ParsedEdit, language: str | None, *, truncated: bool = False
) -> tuple[Check, ...]:
    r"""Return all checks of one merged text. Both texts have "\n" lines; `truncated` says that generation was cut."""
    gone = removals(original.split("\n"), merged.split("\n"), edit)
    before = survey(original, language)
    after = survey(merged, language) if before is not None else None
    return (
        _marker_leak(original, merged, edit),
        _added_lines_present(merged, edit),
        _symbols_kept(before, after, edit, gone),
        _lines_removed(original, edit, gone),
        _elided_lines_kept(edit, gone),
        _parse_errors(before, after, original.count("\n"), merged, edit),
        _no_op(original, merged, edit),
        _truncated_tail(original, merged, edit, gone, truncated),
    )


def passed(checks: Sequence[Check]) -> bool:
    """Tell whether every check held."""
    return all(check.ok for check in checks)


def _marker_leak(original: str, merged: str, edit: ParsedEdit) -> Check:
    lines = merged.split("\n")
    # Only lines that are new are looked at: a file may well hold placeholders of its own.
    new = Counter(map(str.strip, lines)) - Counter(map(str.strip, original.split("\n")))
    leaked = [line.strip() for line in lines if line.strip() in new and holds_placeholder(line)]
    if "..." in new and "..." not in map(str.strip, edit.added_lines):
        leaked += ["..." for at in placeholder_lines(lines) if lines[at].strip() == "..." != lines[at]]
    return Check("marker_leak", not leaked, _listed("placeholders in the result", leaked) or "no placeholder")


def _added_lines_present(merged: str, edit: ParsedEdit) -> Check:
    """Compare without indentation and spaces at line ends: a rule or a model may have shifted the lines."""
    wanted = _wanted(edit)
    stands = Counter(line.strip() for line in merged.split("\n"))
    missing = list((wanted - stands).elements())
    return Check(
        "added_lines_present", not missing, _listed("missing lines", missing) or f"{wanted.total()} lines found"
    )


def _wanted(edit: ParsedEdit) -> Counter[str]:
    """Return how often each line has to stand in the result at least."""
    if isinstance(edit.changes, Sketch):
        # A sketch may show a line of context twice, so that only its presence counts.
        return Counter(set(_solid(edit.added_lines)))
    wanted: Counter[str] = Counter()
    if isinstance(edit.changes, Substitutions):
        return wanted
    for number, change in enumerate(edit.changes):
        # Blocks may overlap when they are applied in turn, and one may take away what an earlier one wrote.
        later = Counter[str]()
        for other in edit.changes[number + 1 :]:
            later += Counter(_solid(other.before)) - Counter(_solid(other.after))
        # Dots on both sides stand for the same lines, or for themselves.
        written = [line for line in change.after if line.strip() != "..." or line not in change.before]
        wanted |= Counter(_solid(written)) - later
    return wanted


def _solid(lines: Sequence[str]) -> Iterator[str]:
    return (line.strip() for line in lines if line.strip() and not holds_placeholder(line))


def _symbols_kept(before: Survey | None, after: Survey | None, edit: ParsedEdit, gone: Sequence[Removal]) -> Check:
    if before is None or after is None:
        return Check("symbols_kept", True, f"{_NOT_APPLICABLE}: no grammar for this text")
    lost = [symbol for symbol in _lost(before, after) if not _is_meant(symbol, after, edit, gone)]
    names = list(dict.fromkeys(symbol.name for symbol in lost))
    return Check("symbols_kept", not lost, _listed("lost definitions", names) or f"{len(before.symbols)} definitions")


def _lost(before: Survey, after: Survey) -> Iterator[Symbol]:
    """Yield the definitions that stand less often than they did; under a renamed parent they are not lost."""
    left = Counter(symbol.name for symbol in before.symbols) - Counter(symbol.name for symbol in after.symbols)
    gained = Counter(symbol.name for symbol in after.symbols) - Counter(symbol.name for symbol in before.symbols)
    for symbol in before.symbols:
        if left[symbol.name] <= 0:
            continue
        left[symbol.name] -= 1
        parent = symbol.name.rpartition(".")[0]
        moved = next((name for name in gained if _has_new_parent(name, symbol.simple_name, parent, left, gained)), None)
        if moved is None:
            yield symbol
        else:
            gained -= Counter([moved])


def _has_new_parent(name: str, simple: str, parent: str, left: Counter[str], gained: Counter[str]) -> bool:
    scope, _, last = name.rpartition(".")
    return last == simple and scope != parent and (scope in gained or parent in left or not scope or not parent)


def _is_meant(symbol: Symbol, after: Survey, edit: ParsedEdit, gone: Sequence[Removal]) -> bool:
    """Tell whether the edit takes a definition away: it shows the place, rewrites it, or says so."""
    word = re.compile(rf"(?<![\w$]){re.escape(symbol.simple_name)}(?![\w$])")
    if not isinstance(edit.changes, Sketch):
        return any(word.search(line) for line in edit.searched_lines)
    if any(word.search(line) and re.search(r"remov|delet|renam", line, re.IGNORECASE) for line in edit.added_lines):
        return True
    at = [removal for removal in gone if removal.start < symbol.end_line and symbol.first_line < removal.end]
    return bool(at) and all(removal.shown or _is_rewrite(removal) for removal in at)


def _is_rewrite(removal: Removal) -> bool:
    """Tell whether what stands instead is much like what is gone: a renamed function keeps its body."""
    return bool(removal.instead) and fuzz.ratio("\n".join(removal.lines), "\n".join(removal.instead)) >= 60


def _lines_removed(original: str, edit: ParsedEdit, gone: Sequence[Removal]) -> Check:
    total = sum(bool(line.strip()) for line in original.split("\n"))
    removed = sum(len(list(_solid(removal.unshown))) for removal in gone)
    if isinstance(edit.changes, Sketch) and not edit.changes.elides:
        # Without placeholders everything is "shown" to go; the file must at least not shrink that much.
        removed = sum(max(0, len(list(_solid(gap.lines))) - len(list(_solid(gap.instead)))) for gap in gone)
    share = removed / total if total else 0.0
    ok = total <= MIN_LINES_FOR_SHARE or share <= MAX_REMOVED_SHARE
    return Check("lines_removed", ok, f"{removed} of {total} lines removed without the edit showing it")


def _elided_lines_kept(edit: ParsedEdit, gone: Sequence[Removal]) -> Check:
    """A small model likes to drop what it was told to keep; a deletion has to be shown, however small it is."""
    if not isinstance(edit.changes, Sketch) or not edit.changes.elides:
        return Check("elided_lines_kept", True, f"{_NOT_APPLICABLE}: the edit has no placeholder")
    dropped = [line for removal in gone if not any(_solid(removal.instead)) for line in _solid(removal.unshown)]
    return Check("elided_lines_kept", not dropped, _listed("dropped lines", dropped) or "all stand")


def _parse_errors(before: Survey | None, after: Survey | None, num_lines: int, merged: str, edit: ParsedEdit) -> Check:
    if before is None or after is None:
        return Check("parse_errors", True, f"{_NOT_APPLICABLE}: no grammar for this text")
    detail = f"{len(after.error_lines)} syntax errors, {len(before.error_lines)} before"
    if len(after.error_lines) <= len(before.error_lines):
        return Check("parse_errors", True, detail)
    if len(before.error_lines) > max(MAX_ERRORS_BEFORE, MAX_ERROR_SHARE * num_lines):
        return Check("parse_errors", True, f"{_NOT_APPLICABLE}: the grammar does not fit this file ({detail})")
    if _is_the_edit_itself(merged, edit):
        return Check("parse_errors", True, f"{detail}; the result is the edit as it was sent")
    lines = merged.split("\n")
    where = ", ".join(str(line + 1) for line in after.error_lines[:_SHOWN] if line < len(lines))
    return Check("parse_errors", False, f"{detail}; now at lines {where}")


def _is_the_edit_itself(merged: str, edit: ParsedEdit) -> bool:
    """Tell whether the edit is the whole result, so that whatever is wrong with it was sent so."""
    if not isinstance(edit.changes, Sketch) or len(edit.changes.blocks) != 1:
        return False
    sent = [line.rstrip() for line in edit.changes.blocks[0]]
    return "\n".join(sent).strip("\n") == "\n".join(line.rstrip() for line in merged.split("\n")).strip("\n")


def _no_op(original: str, merged: str, edit: ParsedEdit) -> Check:
    if original != merged:
        return Check("no_op", True, "the text changed")
    stands = {line.strip() for line in original.split("\n")}
    if isinstance(edit.changes, Sketch):
        asked = any(line.strip() and line.strip() not in stands for line in edit.added_lines)
    else:
        asked = edit.added_lines != edit.searched_lines
    return Check("no_op", not asked, "nothing changed although the edit asks for it" if asked else "nothing to change")


def _truncated_tail(original: str, merged: str, edit: ParsedEdit, gone: Sequence[Removal], truncated: bool) -> Check:
    if truncated:
        return Check("truncated_tail", False, "generation stopped before the end of the file")
    if len(list(_solid(original.split("\n")))) <= MIN_LINES_FOR_SHARE and _is_the_edit_itself(merged, edit):
        return Check("truncated_tail", True, f"{_NOT_APPLICABLE}: a small file, sent whole")
    lost: list[str] = []
    for removal in gone:
        if removal.at_end and not removal.shown and not _is_rewrite(removal):
            lost = list(_solid(removal.unshown))
            instead = len(list(_solid(removal.instead)))
            if len(lost) < _TAIL_LINES + 2 * instead:
                lost = []
    detail = f"the last {len(lost)} lines are gone" if lost else "the end of the file stands"
    return Check("truncated_tail", not lost, detail)


def _listed(what: str, found: Sequence[str]) -> str:
    """Return 'what: a, b (and n more)', '' if there are none."""
    more = f" (and {len(found) - _SHOWN} more)" if len(found) > _SHOWN else ""
    return f"{what}: {', '.join(found[:_SHOWN])}{more}" if found else ""
