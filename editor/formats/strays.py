"""Checks the text of an edit outside of its blocks, and joins parts for the same file.

Lines outside of blocks are talk and are left out; a change among them would be lost, so it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from editor.errors import EditSyntaxError
from editor.types import ParsedEdit

_LEADING = r"[\s>]*"
_MARKER = re.compile(
    rf"{_LEADING}(?:"
    r"<{5,9} ?(?:SEARCH|ORIGINAL|HEAD|UPDATED)\b.*|-{5,9} ?SEARCH\b.*|[>+]{5,9} ?(?:REPLACE|UPDATED)\b.*|<{7} \S.*|"
    r"@@(?: .*)?|\*\*\* (?:Begin Patch|(?:Add|Update|Delete) File:.*|Move to:.*)|diff --git .*|"
    r"</?(?:old_text|new_text|old_str|new_str|old_string|new_string|search|replace|file_text)\b[^>]*>.*|"
    r"(?:[{,]\s*+)?\"(?:old_string|new_string|old_str|new_str|oldText|newText|old_text|new_text|file_text)\"\s*:.*"
    r")",
    re.IGNORECASE,
)
_BARE_WORD = re.compile(r"\s*(?:SEARCH|REPLACE):?\s*")
_DIFF_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*(?:diff|patch)\s*", re.IGNORECASE)
_FENCE = re.compile(r"\s*(?:`{3,}|~{3,})\s*")
_NORMAL_DIFF = re.compile(r"\d+(?:,\d+)?[acd]\d+(?:,\d+)?")


def find_stray(lines: Sequence[str], outside: Iterable[int]) -> int | None:
    """Return the first line outside of an edit that looks like a part of an edit, or None."""
    talk = set(outside)
    return next((at for at in sorted(talk) if _is_stray(lines, at, talk)), None)


def refuse_strays(lines: Sequence[str], outside: Iterable[int], what: str) -> None:
    """Raise `EditSyntaxError` if a line outside of `what` (such as "the blocks") looks like a part of an edit."""
    at = find_stray(lines, outside)
    if at is not None:
        raise EditSyntaxError(
            "malformed",
            f"Line {at + 1} of the edit ('{lines[at].strip()[:60]}') looks like a part of an edit, but stands outside "
            f"of {what}: it would be lost.",
            "Send all changes in one format, each marker at the beginning of its line.",
        )


def is_normal_diff(lines: Sequence[str], at: int) -> bool:
    """Return whether a change of `diff` without `-u` begins here: '3c3' above '< old' or '> new'."""
    if at + 1 >= len(lines) or not _NORMAL_DIFF.fullmatch(lines[at].strip()):
        return False
    return lines[at + 1].lstrip().startswith(("< ", "> ", "<\t", ">\t"))


def is_context_diff(lines: Sequence[str], at: int) -> bool:
    """Return whether the hunks of a context diff (`diff -c`) begin here."""
    return lines[at].startswith("***************") and at + 1 < len(lines) and lines[at + 1].startswith("*** ")


def _is_stray(lines: Sequence[str], at: int, talk: set[int]) -> bool:
    line = lines[at]
    if _MARKER.fullmatch(line) or _BARE_WORD.fullmatch(line) or is_normal_diff(lines, at):
        return True
    if line.startswith("--- ") and at + 1 in talk and lines[at + 1].startswith("+++ "):
        return True
    return _DIFF_FENCE.fullmatch(line) is not None and _has_signs(lines, at + 1, talk)


def _has_signs(lines: Sequence[str], start: int, talk: set[int]) -> bool:
    """Return whether the fence opened above a line holds unread lines with signs."""
    at = start
    while at in talk and not _FENCE.fullmatch(lines[at]):
        if lines[at].lstrip()[:1] in {"+", "-"}:
            return True
        at += 1
    return False


def join_parts(files: Sequence[ParsedEdit]) -> tuple[ParsedEdit, ...]:
    """Return the edits with the updates of one file joined, if a diff or patch names it more than once.

    Parts are not joined if a later one quotes lines that an earlier one writes: they have to be applied in turn.
    """
    joined: dict[str, ParsedEdit] = {}
    for number, file in enumerate(files):
        known = joined.get(file.path)
        if known is None:
            joined[file.path] = file
        elif _may_join(known, file):
            joined[file.path] = _join(known, file)
        else:
            joined[f"{file.path}\n{number}"] = file
    return tuple(joined.values())


def _may_join(one: ParsedEdit, other: ParsedEdit) -> bool:
    if not (isinstance(one.changes, tuple) and isinstance(other.changes, tuple) and one.ordered and other.ordered):
        return False
    if {one.action, other.action} != {"update"} or one.move_to or other.move_to:
        return False
    written = {line for change in one.changes for line in _list_solid(change.after) - _list_solid(change.before)}
    return not any(written & _list_solid(change.before) for change in other.changes)


def _join(one: ParsedEdit, other: ParsedEdit) -> ParsedEdit:
    assert isinstance(one.changes, tuple)
    assert isinstance(other.changes, tuple)
    final_newline = one.final_newline if other.final_newline is None else other.final_newline
    prose = "\n".join(text for text in dict.fromkeys((one.prose, other.prose)) if text)
    detected = f"{one.detected}, and {other.detected}"
    changes = one.changes + other.changes
    return replace(one, changes=changes, detected=detected, final_newline=final_newline, prose=prose)


def _list_solid(lines: Sequence[str]) -> set[str]:
    return {line.strip() for line in lines if any(map(str.isalnum, line))}
