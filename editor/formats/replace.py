"""Exact string replacement as agents' edit tools have it: JSON with the old and the new text of one file or several.

    {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2", "replace_all": false}

The path and `replace_all` are optional, as is `expected_replacements` (how many places are to be changed). The
spellings of Claude Code, Gemini CLI, opencode, pi and of the `str_replace_editor` are known (`json_edit.py`); several
changes come as a list, one below the other, or under `edits`. A pair that is sent twice is read once.
"""

from __future__ import annotations

from editor.errors import EditSyntaxError
from editor.formats import json_edit
from editor.formats.json_edit import NEW, OLD, Item
from editor.types import ParsedEdit, Substitution, Substitutions

_FIELDS = frozenset({OLD, NEW, "replace_all", "count", "note"})


def looks_like(edit: str, *, plain: bool = False) -> bool:
    """Tell whether an edit is JSON that only an edit tool would be sent; with `plain`, keys of data files count too."""
    return json_edit.looks_like(edit, (OLD, NEW), plain=plain)


def parse_files(edit: str) -> tuple[ParsedEdit, ...]:
    """Return one edit for every file, in order of first appearance; raises `EditSyntaxError`."""
    try:
        items, prose = json_edit.read(edit)
        return tuple(_parsed(path, found, prose) for path, found in json_edit.by_path(items).items())
    except EditSyntaxError as error:
        raise EditSyntaxError(
            error.code,
            error.message,
            'Write the edit as JSON: {"old_string": "...", "new_string": "..."}, or a list of such objects; the old '
            'text has to stand in the file exactly once, or else add "replace_all": true.',
        ) from error


def _parsed(path: str, items: list[Item], prose: str) -> ParsedEdit:
    sent = [_substitution(item) for item in items]
    changes = tuple(dict.fromkeys(sent))
    again = f", {len(sent) - len(changes)} of them sent again" if len(changes) < len(sent) else ""
    detected = f"{len(sent)} old/new pair{'' if len(sent) == 1 else 's'} in JSON{again}"
    return ParsedEdit("replace", Substitutions(changes), detected, path, prose=prose)


def _substitution(item: Item) -> Substitution:
    if item.fields.keys() - _FIELDS:
        raise json_edit.malformed("A change by old and new text has no line numbers; those are the format 'lines'.")
    replace_all = item.fields.get("replace_all", False)
    if not isinstance(replace_all, bool):
        raise json_edit.malformed("'replace_all' is true or false.")
    count = item.fields.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise json_edit.malformed("'expected_replacements' is a number from 1.")
    old, new = json_edit.text_of(item, OLD), "" if _only_deletes(item) else json_edit.text_of(item, NEW)
    if not old and not new:
        raise EditSyntaxError("empty_edit", "The old and the new text are both empty.", "")
    several = count is not None and count > 1
    return Substitution(old, new, replace_all or several, count if several else None)


def _only_deletes(item: Item) -> bool:
    """Tell whether a change leaves the new text out, which the tool `str_replace` takes for none."""
    return NEW not in item.fields and item.command == "str_replace"
