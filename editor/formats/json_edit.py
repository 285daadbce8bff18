"""Edits written as JSON, as tool calls are: one object, a list of them, or an object with a list under `edits`.

Every field has the spellings of the tools that models know; a field that none of them has is refused, as is a field
given twice, so that nothing is dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from editor.errors import EditSyntaxError
from editor.formats.fences import without_fence

OLD = "old"
NEW = "new"
PATH = "path"
_SPELLINGS = {
    OLD: ("old_string", "old_str", "oldString", "old_text", "oldText", "oldStr", "old"),
    NEW: ("new_string", "new_str", "newString", "new_text", "newText", "newStr", "insert_text", "new"),
    "replace_all": ("replace_all", "replaceAll"),
    PATH: ("file_path", "filePath", "path", "filename", "file"),
    "start": ("start_line", "startLine"),
    "end": ("end_line", "endLine"),
    "insert": ("insert_line", "insertLine"),
    "edits": ("edits",),
    # What the tools say about the call itself; nothing to apply.
    "note": ("command", "instruction", "description", "explanation"),
    "count": ("expected_replacements",),
}
_FIELD_OF = {spelling: field for field, spellings in _SPELLINGS.items() for spelling in spellings}
# Keys that a data file may well have too: they do not make a text an edit.
_PLAIN = frozenset({"old", "new", "path", "file", "filename", "edits", "command", "description"})


@dataclass(frozen=True, slots=True)
class Item:
    """One change with its fields under their first names; `path` may come from the object around it."""

    fields: Mapping[str, Any]
    path: str


def looks_like(edit: str, fields: Iterable[str]) -> bool:
    """Tell whether an edit is JSON with nothing but known keys, every change of which has these fields.

    At least one key must be a spelling that only tools use: `{"old": ..., "new": ...}` may be a file of its own.
    """
    text = _body(edit)
    if not text.startswith(("{", "[")):
        return False
    try:
        found = read(text)
        keys = _keys(json.loads(text, strict=False))
    except (EditSyntaxError, ValueError, RecursionError):
        return False
    return all(item.fields.keys() >= set(fields) for item in found) and not keys <= _PLAIN


def read(edit: str) -> list[Item]:
    """Return the changes of an edit; raises `EditSyntaxError` (without a suggestion for the format at hand)."""
    try:
        value = json.loads(_body(edit), strict=False, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise malformed(f"The edit is not JSON: {error}.") from error
    items = list(_items(value, ""))
    if not items:
        raise EditSyntaxError("empty_edit", "The edit holds no change.", "Send at least one.")
    return items


def text_of(item: Item, field: str) -> str:
    r"""Return a field that holds text, with "\n" lines; raises `EditSyntaxError` if it is missing or no text."""
    value = item.fields.get(field)
    if not isinstance(value, str):
        raise malformed(f"Every change needs {_named(field)} as a string.")
    return value.replace("\r\n", "\n")


def by_path(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return the changes by file, in order of first appearance; raises `EditSyntaxError` if only some name one."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.path, []).append(item)
    if "" in found and len(found) > 1:
        raise malformed("Some changes name a file, and some do not.")
    return found


def malformed(message: str) -> EditSyntaxError:
    """Return the error of an edit that is not written as it has to be; the format at hand says how."""
    return EditSyntaxError("malformed", message, "")


def _body(edit: str) -> str:
    return "\n".join(without_fence(edit.split("\n"))).strip()


def _items(value: Any, path: str) -> Iterable[Item]:
    if isinstance(value, list):
        for one in value:
            yield from _items(one, path)
        return
    if not isinstance(value, dict):
        raise malformed("The edit is not an object or a list of objects.")
    fields: dict[str, Any] = {}
    for key, one in value.items():
        field = _FIELD_OF.get(key)
        if field is None:
            raise malformed(f"The key {key!r} is not known.")
        if field in fields and field != "note":
            raise malformed(f"{_named(field)} is given twice.")
        fields[field] = one
    named = fields.pop(PATH, path)
    if not isinstance(named, str):
        raise malformed(f"{_named(PATH)} is not a string.")
    edits = fields.pop("edits", None)
    if edits is None:
        yield Item(fields, named)
    elif fields.keys() - {"note"} or not isinstance(edits, list):
        raise malformed("An object has 'edits' as a list beside at most a path.")
    else:
        yield from _items(edits, named)


def _keys(value: Any) -> set[str]:
    if isinstance(value, list):
        return {key for one in value for key in _keys(one)}
    return set(value) | _keys(value.get("edits", [])) if isinstance(value, dict) else set()


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _named(field: str) -> str:
    return f"'{_SPELLINGS[field][0]}'"
