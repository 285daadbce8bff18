"""Edits as text to the one intermediate form, whatever format they are written in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

from editor.errors import EditSyntaxError
from editor.formats import lazy, lines, search_replace, udiff, v4a, whole
from editor.formats import replace as replace_format
from editor.types import FormatName, ParsedEdit, Replacement, Substitution, Substitutions

_MARK = "\ufeff"
_READERS: dict[FormatName, Callable[[str], tuple[ParsedEdit, ...]]] = {
    "lazy": lambda edit: (lazy.parse(edit),),
    "lines": lines.parse_files,
    "replace": replace_format.parse_files,
    "search_replace": search_replace.parse_files,
    "udiff": udiff.parse_files,
    "v4a": v4a.parse_files,
    "whole": whole.parse_files,
}


def parse(edit: str, format: FormatName | Literal["auto"] = "auto") -> ParsedEdit:  # noqa: A002 (the request's name)
    r"""Return an edit of one file in the intermediate form; raises `EditSyntaxError`, also if it names several files.

    Line endings of the edit say nothing about the file, so "\r\n" is read as "\n".
    """
    files = parse_files(edit, format)
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
) -> tuple[ParsedEdit, ...]:
    """Return the edit of every file, in order of first appearance; raises `EditSyntaxError`.

    A format that is named is not guessed about. With "auto" see `detect`.
    """
    text = edit.removeprefix(_MARK).replace("\r\n", "\n")
    if not text.strip():
        raise EditSyntaxError("empty_edit", "The edit is empty.", "Send the lines to be changed.")
    try:
        return tuple(map(_without_mark, _READERS[detect(text) if format == "auto" else format](text)))
    except RecursionError as error:
        message = "The edit is nested more deeply than can be read."
        raise EditSyntaxError("malformed", message, "Send the changes in one flat list.") from error


def _without_mark(edit: ParsedEdit) -> ParsedEdit:
    """Return an edit whose first quoted line does not begin with the file's byte order mark: a file's text has none.

    Diffs of tools show the mark as a part of the first line. Raises `EditSyntaxError` if only the mark would change.
    """
    if isinstance(edit.changes, tuple) and any(one.before and one.before[0].startswith(_MARK) for one in edit.changes):
        return dataclasses.replace(edit, changes=tuple(map(_unmarked, edit.changes)))
    if isinstance(edit.changes, Substitutions) and any(one.old.startswith(_MARK) for one in edit.changes.items):
        return dataclasses.replace(edit, changes=Substitutions(tuple(map(_unmarked_text, edit.changes.items))))
    return edit


def _unmarked(change: Replacement) -> Replacement:
    if not change.before or not change.before[0].startswith(_MARK):
        return change
    before, after = (
        tuple(line if at else line.removeprefix(_MARK) for at, line in enumerate(lines))
        for lines in (change.before, change.after)
    )
    if before == after and change.before != change.after:
        raise _only_the_mark()
    return dataclasses.replace(change, before=before, after=after)


def _unmarked_text(item: Substitution) -> Substitution:
    if not item.old.startswith(_MARK):
        return item
    old, new = item.old.removeprefix(_MARK), item.new.removeprefix(_MARK)
    if old == new != "" and item.old != item.new:
        raise _only_the_mark()
    return dataclasses.replace(item, old=old, new=new) if old else item


def _only_the_mark() -> EditSyntaxError:
    message = "The edit adds or takes away the file's byte order mark (U+FEFF), and changes nothing else there."
    return EditSyntaxError("malformed", message, "Leave that change out; the mark stays as it is.")


def detect(edit: str) -> FormatName:
    """Return the format that an edit is written in; a lazy snippet if it has the form of no other.

    What comes first decides between formats that can quote each other: a diff may hold SEARCH blocks, and a SEARCH
    block may hold a diff. JSON only counts as an edit with keys that edit tools have and data files do not. A whole
    file is never guessed.
    """
    rows = edit.split("\n")
    first = search_replace.first_opener(rows)
    above = edit if first is None else "\n".join(rows[:first])
    for name, looks_like in _PATCHES.items():
        if looks_like(above):
            return name
    if search_replace.looks_like(edit):
        return "search_replace"
    if first is None:
        for name, looks_like in _CALLS.items():
            if looks_like(edit):
                return name
    return "lazy"


_PATCHES: dict[FormatName, Callable[[str], bool]] = {"v4a": v4a.looks_like, "udiff": udiff.looks_like}
_CALLS: dict[FormatName, Callable[[str], bool]] = {
    "lines": lines.looks_like,
    "replace": replace_format.looks_like,
}
