"""Parses an edit of any format into the one intermediate form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from editor.errors import EditSyntaxError
from editor.formats import json_edit, lazy, search_replace, unified_diff, v4a
from editor.formats.markup import find_kind
from editor.grammars import find_language
from editor.types import FormatName, ParsedEdit, Replacement, Substitution, Substitutions

_BOM = "\ufeff"
_READERS: dict[FormatName, Callable[[str, str], tuple[ParsedEdit, ...]]] = {
    "lazy": lambda edit, path: (lazy.parse(edit, path),),
    "lines": lambda edit, _: json_edit.parse_line_ranges(edit),
    "replace": lambda edit, _: json_edit.parse_string_replacements(edit),
    "search_replace": search_replace.parse_files,
    "udiff": lambda edit, _: unified_diff.parse_files(edit),
    "v4a": lambda edit, _: v4a.parse_files(edit),
    "whole": lazy.parse_whole_files,
}


def parse(
    edit: str,
    format: FormatName | Literal["auto"] = "auto",  # noqa: A002 (the request's name)
    path: str = "",
) -> ParsedEdit:
    r"""Parse an edit of one file; raises `EditSyntaxError`, also if the edit names several files.

    Line endings of the edit say nothing about the file, so "\r\n" is read as "\n".
    """
    files = join_parts(parse_files(edit, format, path))
    if len(files) > 1:
        names = ", ".join(file.path for file in files[:10])
        raise EditSyntaxError(
            "several_files",
            f"The edit is for {len(files)} files: {names}{' and more' if len(files) > 10 else ''}.",
            "Send the edits of one file, or the edit as one of many files.",
        )
    return files[0]


def parse_files(
    edit: str,
    format: FormatName | Literal["auto"] = "auto",  # noqa: A002 (the request's name)
    path: str = "",
) -> tuple[ParsedEdit, ...]:
    """Parse the edits of all files, in order of first appearance; raises `EditSyntaxError`.

    With "auto" `detect` chooses the format. `path` is the file that the edit is sent for, "" if the edit has to name
    it: it decides what may be a line of that file, and what is talk or a label.
    """
    text = edit.removeprefix(_BOM).replace("\r\n", "\n")
    if not text.strip():
        raise EditSyntaxError("empty_edit", "The edit is empty.", "Send the lines to be changed.")
    try:
        name = detect(text, path) if format == "auto" else format
        if (name == "lazy" and format == "auto") or (name == "whole" and _cannot_be_json(path)):
            _refuse_json(text, path)
        return tuple(map(_strip_bom, _READERS[name](text, path)))
    except RecursionError as error:
        message = "The edit is nested more deeply than can be read."
        raise EditSyntaxError("malformed", message, "Send the changes in one flat list.") from error


def _strip_bom(edit: ParsedEdit) -> ParsedEdit:
    """Return an edit without the file's byte order mark in its first quoted lines, as a decoded text has none.

    Diffs of tools show the mark as a part of the first line. Raises `EditSyntaxError` if only the mark would change.
    """
    if isinstance(edit.changes, tuple) and any(one.before and one.before[0].startswith(_BOM) for one in edit.changes):
        return dataclasses.replace(edit, changes=tuple(map(_strip_bom_of_replacement, edit.changes)))
    if isinstance(edit.changes, Substitutions) and any(one.old.startswith(_BOM) for one in edit.changes.items):
        return dataclasses.replace(
            edit, changes=Substitutions(tuple(map(_strip_bom_of_substitution, edit.changes.items)))
        )
    return edit


def _strip_bom_of_replacement(change: Replacement) -> Replacement:
    if not change.before or not change.before[0].startswith(_BOM):
        return change
    before, after = (
        tuple(line if at else line.removeprefix(_BOM) for at, line in enumerate(lines))
        for lines in (change.before, change.after)
    )
    if before == after and change.before != change.after:
        raise _bom_only_error()
    return dataclasses.replace(change, before=before, after=after)


def _strip_bom_of_substitution(item: Substitution) -> Substitution:
    if not item.old.startswith(_BOM):
        return item
    old, new = item.old.removeprefix(_BOM), item.new.removeprefix(_BOM)
    if old == new != "" and item.old != item.new:
        raise _bom_only_error()
    return dataclasses.replace(item, old=old, new=new) if old else item


def _bom_only_error() -> EditSyntaxError:
    message = "The edit adds or takes away the file's byte order mark (U+FEFF), and changes nothing else there."
    return EditSyntaxError("malformed", message, "Leave that change out; the mark stays as it is.")


def detect(edit: str, path: str = "") -> FormatName:
    """Return the format of an edit; "lazy" if it has the form of no other.

    What comes first decides between formats that can quote each other: a diff may hold SEARCH blocks, and a SEARCH
    block may hold a diff. JSON only counts as an edit with keys that edit tools have and data files do not, unless the
    file that is edited is no JSON. A whole file is never guessed, but where a call says so.
    """
    rows = edit.split("\n")
    first = search_replace.find_first_opener(rows)
    above = edit if first is None else "\n".join(rows[:first])
    for name, looks_like in _PATCHES.items():
        if looks_like(above):
            return name
    if search_replace.looks_like(edit, path):
        return "search_replace"
    if first is None:
        plain = _cannot_be_json(path)
        if json_edit.looks_like_line_ranges(edit):
            return "lines"
        if json_edit.looks_like(edit, (json_edit.OLD, json_edit.NEW), plain=plain):
            return "replace"
        if lazy.looks_like_whole_file(edit, plain=plain):
            return "whole"
    return "lazy"


def _cannot_be_json(path: str) -> bool:
    return find_kind(path) == "code" and find_language(path) != "yaml"


def _refuse_json(text: str, path: str) -> None:
    """Raise `EditSyntaxError` for a malformed call of a tool, and for JSON that is sent as the text of a program."""
    plain = _cannot_be_json(path)
    if lazy.looks_like_whole_file(text, plain=plain) or not (
        json_edit.holds_call(text, plain=plain) or (plain and json_edit.holds_json(text))
    ):
        return
    json_edit.parse_string_replacements(text)
    raise EditSyntaxError(
        "malformed",
        f"The edit is JSON, and no text of '{path}'.",
        'Send the lines to be changed, or {"old_string": "...", "new_string": "..."}.',
    )


_PATCHES: dict[FormatName, Callable[[str], bool]] = {"v4a": v4a.looks_like, "udiff": unified_diff.looks_like}


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
    return dataclasses.replace(one, changes=changes, detected=detected, final_newline=final_newline, prose=prose)


def _list_solid(lines: Sequence[str]) -> set[str]:
    return {line.strip() for line in lines if any(map(str.isalnum, line))}
