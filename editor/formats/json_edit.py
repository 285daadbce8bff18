"""Parses edits written as JSON: exact string replacement, and changes by line numbers.

Every field has the spellings of the tools that models know. An unknown field is refused, as is a field given twice, so
that nothing is dropped silently. Talk and a fence may surround the JSON.

    {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2", "replace_all": false}

The path and `replace_all` are optional, as is `expected_replacements` (how many places are to be changed). The
spellings of Claude Code, Gemini CLI, opencode, pi and of the `str_replace_editor` are known. Several changes come as a
list, one after the other, or under `edits`. A pair that is sent twice is read once.

    {"start_line": 3, "end_line": 5, "old": "the lines 3 to 5 as they are", "new": "what should be there"}
    {"insert_line": 5, "old": "line 5 as it is", "new": "what should be below it"}

Lines count from 1, the end is included, and all numbers are those of the file before the edit. An `end_line` just above
`start_line` inserts above `start_line`. `old` makes such an edit safe: a line number alone cannot be checked, and
models miscount. SWE-agent's `edit 3:5` ... `end_of_edit` is read as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from editor.errors import EditSyntaxError
from editor.formats.answers import is_code, join_prose
from editor.formats.markup import is_fence, refuse_strays, strip_fence
from editor.placeholders import is_placeholder
from editor.types import Hint, ParsedEdit, Replacement, Substitution, Substitutions

OLD = "old"
NEW = "new"
PATH = "path"
TEXT = "text"
_SPELLINGS = {
    OLD: ("old_string", "old_str", "oldString", "old_text", "oldText", "oldStr", "old"),
    NEW: ("new_string", "new_str", "newString", "new_text", "newText", "newStr", "insert_text", "new"),
    TEXT: ("file_text", "content", "contents"),
    "replace_all": ("replace_all", "replaceAll", "allow_multiple"),
    PATH: ("file_path", "filePath", "path", "filename", "file"),
    "start": ("start_line", "startLine"),
    "end": ("end_line", "endLine"),
    "insert": ("insert_line", "insertLine"),
    "edits": ("edits",),
    # About the call itself; not applied.
    "note": ("command", "instruction", "description", "explanation"),
    "count": ("expected_replacements", "expectedReplacements"),
}
_FIELD_OF = {spelling: field for field, spellings in _SPELLINGS.items() for spelling in spellings}
# Keys that a data file may well have too: they do not make a text an edit.
_PLAIN = frozenset({"old", "new", "path", "file", "filename", "edits", "command", "description", "content", "contents"})
# The first key of an object, as it is at the beginning of JSON that may be broken further down.
_FIRST_KEY = re.compile(r'[\[{\s]*"(?P<key>\w+)"\s*:')

# Blanks and a comma may follow an object on its line.
_MAX_BEHIND = 200


@dataclass(frozen=True, slots=True)
class JsonChange:
    """One change with its fields under their first names; `path` may come from the object around it."""

    fields: Mapping[str, Any]
    path: str

    @property
    def command(self) -> str:
        """The name of the command of the change, '' if it names none."""
        return str(self.fields.get("note", ""))


def looks_like(edit: str, fields: Iterable[str], *, plain: bool = False) -> bool:
    """Return whether an edit is JSON with only known keys, and every change has these fields.

    At least one key must be a spelling that only tools use: `{"old": ..., "new": ...}` may be the text of a file,
    unless `plain` says that the file is no JSON.
    """
    try:
        values, _ = _parse_values(edit)
        found = [item for value in values for item in _parse_items(value, "")]
    except EditSyntaxError:
        return False
    keys = {key for value in values for key in _collect_keys(value)}
    return bool(found) and all(_has_fields(item, fields) for item in found) and (plain or not keys <= _PLAIN)


def holds_call(edit: str, *, plain: bool = False) -> bool:
    """Return whether an edit begins like a call of an edit tool, well-formed or not; `plain` as above."""
    lines = edit.split("\n")
    first = next((at for at, line in enumerate(lines) if line.startswith(("{", "["))), None)
    if first is None or any(is_code(line) or is_placeholder(line) for line in lines[:first]):
        return False
    key = _FIRST_KEY.match("\n".join(lines[first : first + 5]))
    return key is not None and key["key"] in _FIELD_OF and (plain or key["key"] not in _PLAIN)


def holds_json(edit: str) -> bool:
    """Return whether an edit is one or several JSON objects, with only talk and a fence around them."""
    first = next((line for line in edit.split("\n") if line.strip() and not is_fence(line)), "")
    if not first.startswith(("{", "[")):
        return False
    try:
        values, _ = _parse_values(edit)
    except EditSyntaxError:
        return False
    return any(map(_collect_keys, values))


def read_changes(edit: str) -> tuple[list[JsonChange], str]:
    """Return the changes of an edit, and the talk around them.

    Raises `EditSyntaxError` (without a suggestion: the caller adds that of its format).
    """
    values, prose = _parse_values(edit)
    items = [item for value in values for item in _parse_items(value, "")]
    if not items:
        raise EditSyntaxError("empty_edit", "The edit holds no change.", "Send at least one.")
    return items, prose


def _parse_values(edit: str) -> tuple[list[Any], str]:
    """Return the JSON values of an edit, each of which begins a line, and the talk around them."""
    lines = edit.split("\n")
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_refuse_doubles)
    values: list[Any] = []
    outside: list[int] = []
    at = start = 0
    while at < len(lines):
        if not lines[at].lstrip().startswith(("{", "[")):
            outside.append(at)
            start += len(lines[at]) + 1
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(edit, start + len(lines[at]) - len(lines[at].lstrip()))
        except (ValueError, RecursionError) as error:
            raise syntax_error(f"The edit is not JSON: {error}.") from error
        values.append(value)
        behind, newline, _ = edit[end : end + _MAX_BEHIND].partition("\n")
        if behind.strip(" \t\r,;"):
            raise syntax_error(f"The edit is not JSON: '{behind.strip()[:40]}' stands behind an object.")
        at += edit.count("\n", start, end) + 1
        start = end + len(behind) + len(newline)
    if not values:
        raise syntax_error("The edit is not JSON: it has no line that begins with '{' or '['.")
    code = next((at for at in outside if is_code(lines[at]) or is_placeholder(lines[at])), None)
    if code is not None:
        raise syntax_error(f"The edit is not JSON: line {code + 1} ('{lines[code].strip()[:40]}') is none.")
    refuse_strays(lines, outside, "the JSON")
    return values, join_prose(lines, outside)


def _has_fields(item: JsonChange, fields: Iterable[str]) -> bool:
    """Return whether a change has these fields; the tool `str_replace` needs no new text to delete the old one."""
    wanted = set(fields)
    return item.fields.keys() >= wanted or (item.command == "str_replace" and wanted - item.fields.keys() == {NEW})


def get_text(item: JsonChange, field: str) -> str:
    r"""Return a field that holds text, with "\n" lines; raises `EditSyntaxError` if it is missing or no text."""
    value = item.fields.get(field)
    if not isinstance(value, str):
        raise syntax_error(f"Every change needs {_quote_field(field)} as a string.")
    return value.replace("\r\n", "\n")


def group_by_path(items: Iterable[JsonChange]) -> dict[str, list[JsonChange]]:
    """Return the changes by file, in order of first appearance; raises `EditSyntaxError` if only some name a file."""
    found: dict[str, list[JsonChange]] = {}
    for item in items:
        found.setdefault(item.path, []).append(item)
    if "" in found and len(found) > 1:
        raise syntax_error("Some changes name a file, and some do not.")
    return found


def syntax_error(message: str) -> EditSyntaxError:
    """Return the error of a malformed edit, without a suggestion: the caller adds that of its format."""
    return EditSyntaxError("malformed", message, "")


def _parse_items(value: Any, path: str) -> Iterable[JsonChange]:
    if isinstance(value, list):
        for one in value:
            yield from _parse_items(one, path)
        return
    if not isinstance(value, dict):
        raise syntax_error("The edit is not an object or a list of objects.")
    fields: dict[str, Any] = {}
    for key, one in value.items():
        field = _FIELD_OF.get(key)
        if field is None:
            raise syntax_error(f"The key {key!r} is not known.")
        if field in fields and field != "note":
            raise syntax_error(f"{_quote_field(field)} is given twice.")
        if field != "note" or key == "command":
            fields[field] = one
    named = fields.pop(PATH, path)
    if not isinstance(named, str):
        raise syntax_error(f"{_quote_field(PATH)} is not a string.")
    edits = fields.pop("edits", None)
    if edits is None:
        yield JsonChange(fields, named)
    elif fields.keys() - {"note"} or not isinstance(edits, list):
        raise syntax_error("An object has 'edits' as a list beside at most a path.")
    else:
        yield from _parse_items(edits, named)


def _collect_keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for one in value for key in _collect_keys(one)}
    return set(value) | _collect_keys(value.get("edits", [])) if isinstance(value, dict) else set()


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _quote_field(field: str) -> str:
    return f"'{_SPELLINGS[field][0]}'"


_FIELDS = frozenset({OLD, NEW, "replace_all", "count", "note"})


def parse_string_replacements(edit: str) -> tuple[ParsedEdit, ...]:
    """Return one edit for every file, in order of first appearance; raises `EditSyntaxError`."""
    try:
        items, prose = read_changes(edit)
        return tuple(_build_edit(path, found, prose) for path, found in group_by_path(items).items())
    except EditSyntaxError as error:
        raise EditSyntaxError(
            error.code,
            error.message,
            'Write the edit as JSON: {"old_string": "...", "new_string": "..."}, or a list of such objects; the old '
            'text has to stand in the file exactly once, or else add "replace_all": true.',
        ) from error


def _build_edit(path: str, items: list[JsonChange], prose: str) -> ParsedEdit:
    sent = [_build_substitution(item) for item in items]
    changes = tuple(dict.fromkeys(sent))
    again = f", {len(sent) - len(changes)} of them sent again" if len(changes) < len(sent) else ""
    detected = f"{len(sent)} old/new pair{'' if len(sent) == 1 else 's'} in JSON{again}"
    return ParsedEdit("replace", Substitutions(changes), detected, path, prose=prose)


def _build_substitution(item: JsonChange) -> Substitution:
    if item.fields.keys() - _FIELDS:
        raise syntax_error("A change by old and new text has no line numbers; those are the format 'lines'.")
    replace_all = item.fields.get("replace_all", False)
    if not isinstance(replace_all, bool):
        raise syntax_error("'replace_all' is true or false.")
    count = item.fields.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise syntax_error("'expected_replacements' is a number from 1.")
    old, new = get_text(item, OLD), "" if _is_deletion(item) else get_text(item, NEW)
    if not old and not new:
        raise EditSyntaxError("empty_edit", "The old and the new text are both empty.", "")
    several = count is not None and count > 1
    return Substitution(old, new, replace_all or several, count if several else None)


def _is_deletion(item: JsonChange) -> bool:
    """Return whether a change leaves out the new text, which deletes the old one in the tool `str_replace`."""
    return NEW not in item.fields and item.command == "str_replace"


_COMMAND = re.compile(r"edit (\d{1,18}):(\d{1,18})\s*")
_END = "end_of_edit"
_MAX_NUMBER = 10**18
_HOW_RANGES = (
    'Write the edit as JSON: {"start_line": 3, "end_line": 5, "old": "lines 3 to 5 as they are", "new": "..."}, or a '
    "list of such objects; lines count from 1, the end is included."
)


def looks_like_line_ranges(edit: str) -> bool:
    """Return whether an edit is JSON with line numbers and new text, or only commands of SWE-agent."""
    lines = _list_command_lines(edit)
    if lines and _COMMAND.fullmatch(lines[0]) and lines[-1].strip() == _END:
        return True
    return looks_like(edit, ("start", "end", NEW)) or looks_like(edit, ("insert", NEW))


def parse_line_ranges(edit: str) -> tuple[ParsedEdit, ...]:
    """Return one edit for every file, in order of first appearance; raises `EditSyntaxError`."""
    lines = _list_command_lines(edit)
    try:
        if lines and _COMMAND.fullmatch(lines[0]):
            return (_build_range_edit("", _parse_commands(lines)),)
        items, prose = read_changes(edit)
        files = group_by_path(items)
        return tuple(
            _build_range_edit(path, [_build_change(item) for item in found], prose) for path, found in files.items()
        )
    except EditSyntaxError as error:
        raise EditSyntaxError(error.code, error.message, _HOW_RANGES) from error


def _build_range_edit(path: str, changes: list[Replacement], prose: str = "") -> ParsedEdit:
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
            raise syntax_error(f"Line {at + 1} of the edit has {missing}.")
        changes.append(_build_range(int(command[1]), int(command[2]), None, tuple(lines[at + 1 : end])))
        at = next((row for row in range(end + 1, len(lines)) if lines[row].strip()), len(lines))
    return changes


def _build_change(item: JsonChange) -> Replacement:
    if item.fields.keys() - {"start", "end", "insert", OLD, NEW, "note"}:
        raise syntax_error("A change by line numbers has no 'replace_all'.")
    old = None if item.fields.get(OLD) is None else _split_lines(get_text(item, OLD))
    new = _split_lines(get_text(item, NEW))
    if "insert" not in item.fields:
        return _build_range(_get_number(item, "start"), _get_number(item, "end"), old, new)
    if "start" in item.fields or "end" in item.fields:
        raise syntax_error("A change has either 'insert_line', or 'start_line' and 'end_line'.")
    line = _get_number(item, "insert")
    if old is None or line == 0:
        return _build_range(line + 1, line, None, new)
    if len(old) != 1:
        raise syntax_error("Beside 'insert_line', 'old' is that one line.")
    return _build_range(line, line, old, (*old, *new))


def _build_range(start: int, end: int, old: tuple[str, ...] | None, new: tuple[str, ...]) -> Replacement:
    size = end - start + 1
    if start < 1 or size < 0:
        raise syntax_error(f"Lines {start} to {end} are no range of lines.")
    if old is not None and len(old) != size:
        raise syntax_error(f"Lines {start} to {end} are {size}, but the old text has {len(old)}.")
    hint = Hint(line=start - 1, pinned=True, num_unseen=size if old is None else 0)
    return Replacement(old or (), new, hint)


def _get_number(item: JsonChange, field: str) -> int:
    value = item.fields.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MAX_NUMBER:
        raise syntax_error("Every change needs 'start_line' and 'end_line' (or 'insert_line') as whole numbers.")
    return value


def _split_lines(text: str) -> tuple[str, ...]:
    return tuple(text.removesuffix("\n").split("\n")) if text else ()
