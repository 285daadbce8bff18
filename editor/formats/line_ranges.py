"""Parses edits by line numbers: JSON, or SWE-agent's `edit 3:5` ... `end_of_edit`.

    {"start_line": 3, "end_line": 5, "old": "the lines 3 to 5 as they are", "new": "what should be there"}
    {"insert_line": 5, "old": "line 5 as it is", "new": "what should be below it"}

Lines count from 1, the end is included, and all numbers are those of the file before the edit. An `end_line`
just above `start_line` inserts above `start_line`. `old` makes such an edit safe: a line number alone cannot
be checked, and models miscount.
"""

from __future__ import annotations

import re

from editor.errors import EditSyntaxError
from editor.formats import json_edit
from editor.formats.fences import strip_fence
from editor.formats.json_edit import NEW, OLD, JsonChange
from editor.types import Hint, ParsedEdit, Replacement

_COMMAND = re.compile(r"edit (\d{1,18}):(\d{1,18})\s*")
_END = "end_of_edit"
_MAX_NUMBER = 10**18
_HOW = (
    'Write the edit as JSON: {"start_line": 3, "end_line": 5, "old": "lines 3 to 5 as they are", "new": "..."}, or a '
    "list of such objects; lines count from 1, the end is included."
)


def looks_like(edit: str) -> bool:
    """Return whether an edit is JSON with line numbers and new text, or only commands of SWE-agent."""
    lines = _list_command_lines(edit)
    if lines and _COMMAND.fullmatch(lines[0]) and lines[-1].strip() == _END:
        return True
    return json_edit.looks_like(edit, ("start", "end", NEW)) or json_edit.looks_like(edit, ("insert", NEW))


def parse_files(edit: str) -> tuple[ParsedEdit, ...]:
    """Return one edit for every file, in order of first appearance; raises `EditSyntaxError`."""
    lines = _list_command_lines(edit)
    try:
        if lines and _COMMAND.fullmatch(lines[0]):
            return (_build_edit("", _parse_commands(lines)),)
        items, prose = json_edit.read_changes(edit)
        files = json_edit.group_by_path(items)
        return tuple(_build_edit(path, [_build_change(item) for item in found], prose) for path, found in files.items())
    except EditSyntaxError as error:
        raise EditSyntaxError(error.code, error.message, _HOW) from error


def _build_edit(path: str, changes: list[Replacement], prose: str = "") -> ParsedEdit:
    detected = f"{len(changes)} change{'' if len(changes) == 1 else 's'} by line numbers"
    return ParsedEdit("lines", tuple(changes), detected, path, prose=prose)


def _list_command_lines(edit: str) -> list[str]:
    lines = strip_fence(edit.split("\n"))
    solid = [at for at, line in enumerate(lines) if line.strip()]
    return lines[solid[0] : solid[-1] + 1] if solid else []


def _parse_commands(lines: list[str]) -> list[Replacement]:
    changes: list[Replacement] = []
    at = 0
    while at < len(lines):
        command = _COMMAND.fullmatch(lines[at])
        end = next((row for row in range(at + 1, len(lines)) if lines[row].strip() == _END), None)
        if command is None or end is None:
            missing = f"no line '{_END}' below it" if command else "no 'edit START:END' in it"
            raise json_edit.syntax_error(f"Line {at + 1} of the edit has {missing}.")
        changes.append(_build_range(int(command[1]), int(command[2]), None, tuple(lines[at + 1 : end])))
        at = next((row for row in range(end + 1, len(lines)) if lines[row].strip()), len(lines))
    return changes


def _build_change(item: JsonChange) -> Replacement:
    if item.fields.keys() - {"start", "end", "insert", OLD, NEW, "note"}:
        raise json_edit.syntax_error("A change by line numbers has no 'replace_all'.")
    old = None if item.fields.get(OLD) is None else _split_lines(json_edit.get_text(item, OLD))
    new = _split_lines(json_edit.get_text(item, NEW))
    if "insert" not in item.fields:
        return _build_range(_get_number(item, "start"), _get_number(item, "end"), old, new)
    if "start" in item.fields or "end" in item.fields:
        raise json_edit.syntax_error("A change has either 'insert_line', or 'start_line' and 'end_line'.")
    line = _get_number(item, "insert")
    if old is None or line == 0:
        return _build_range(line + 1, line, None, new)
    if len(old) != 1:
        raise json_edit.syntax_error("Beside 'insert_line', 'old' is that one line.")
    return _build_range(line, line, old, (*old, *new))


def _build_range(start: int, end: int, old: tuple[str, ...] | None, new: tuple[str, ...]) -> Replacement:
    size = end - start + 1
    if start < 1 or size < 0:
        raise json_edit.syntax_error(f"Lines {start} to {end} are no range of lines.")
    if old is not None and len(old) != size:
        raise json_edit.syntax_error(f"Lines {start} to {end} are {size}, but the old text has {len(old)}.")
    hint = Hint(line=start - 1, pinned=True, num_unseen=size if old is None else 0)
    return Replacement(old or (), new, hint)


def _get_number(item: JsonChange, field: str) -> int:
    value = item.fields.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_NUMBER:
        raise json_edit.syntax_error(
            "Every change needs 'start_line' and 'end_line' (or 'insert_line') as whole numbers."
        )
    return value


def _split_lines(text: str) -> tuple[str, ...]:
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
