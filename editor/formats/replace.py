"""Exact string replacement as agents' edit tools have it: JSON with the old and the new text of one file or several.

    {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2", "replace_all": false}

The path and `replace_all` are optional. The spellings of Claude Code, Gemini CLI, opencode, pi and of the
`str_replace_editor` are known (`editor/formats/json_edit.py`); several changes come as a list, or under `edits`.
"""

from __future__ import annotations

from editor.errors import EditSyntaxError
from editor.formats import json_edit
from editor.formats.json_edit import NEW, OLD, Item
from editor.types import ParsedEdit, Substitution, Substitutions

_FIELDS = frozenset({OLD, NEW, "replace_all", "count", "note"})


def looks_like(edit: str) -> bool:
    """Tell whether an edit is JSON that only an edit tool would be sent."""
    return json_edit.looks_like(edit, (OLD, NEW))


def parse_files(edit: str) -> tuple[ParsedEdit, ...]:
    """Return one edit for every file, in order of first appearance; raises `EditSyntaxError`."""
    try:
        files = json_edit.by_path(json_edit.read(edit))
        return tuple(_parsed(path, items) for path, items in files.items())
    except EditSyntaxError as error:
        raise EditSyntaxError(
            error.code,
            error.message,
            'Write the edit as JSON: {"old_string": "...", "new_string": "..."}, or a list of such objects; the old '
            'text has to stand in the file exactly once, or else add "replace_all": true.',
        ) from error


def _parsed(path: str, items: list[Item]) -> ParsedEdit:
    changes = Substitutions(tuple(_substitution(item) for item in items))
    return ParsedEdit("replace", changes, f"{len(items)} old/new pair{'' if len(items) == 1 else 's'} in JSON", path)


def _substitution(item: Item) -> Substitution:
    if item.fields.keys() - _FIELDS:
        raise json_edit.malformed("A change by old and new text has no line numbers; those are the format 'lines'.")
    replace_all = item.fields.get("replace_all", False)
    if not isinstance(replace_all, bool):
        raise json_edit.malformed("'replace_all' is true or false.")
    if item.fields.get("count", 1) != 1:
        raise json_edit.malformed("'expected_replacements' other than 1 cannot be held to; use 'replace_all'.")
    old, new = json_edit.text_of(item, OLD), json_edit.text_of(item, NEW)
    if not old and not new:
        raise EditSyntaxError("empty_edit", "The old and the new text are both empty.", "")
    return Substitution(old, new, replace_all)
