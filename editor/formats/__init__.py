"""Edits as text to the one intermediate form, whatever format they are written in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from editor.errors import EditSyntaxError
from editor.formats import json_edit, lazy, lines, search_replace, udiff, v4a, whole
from editor.formats import replace as replace_format
from editor.formats.parts import join_parts
from editor.formats.targets import kind_of
from editor.languages import language_of
from editor.types import FormatName, ParsedEdit

_READERS: dict[FormatName, Callable[[str, str], tuple[ParsedEdit, ...]]] = {
    "lazy": lambda edit, path: (lazy.parse(edit, path),),
    "lines": lambda edit, _: lines.parse_files(edit),
    "replace": lambda edit, _: replace_format.parse_files(edit),
    "search_replace": search_replace.parse_files,
    "udiff": lambda edit, _: udiff.parse_files(edit),
    "v4a": lambda edit, _: v4a.parse_files(edit),
    "whole": whole.parse_files,
}


def parse(
    edit: str,
    format: FormatName | Literal["auto"] = "auto",  # noqa: A002 (the request's name)
    path: str = "",
) -> ParsedEdit:
    r"""Return an edit of one file in the intermediate form; raises `EditSyntaxError`, also if it names several files.

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
    """Return the edit of every file, in order of first appearance; raises `EditSyntaxError`.

    A format that is named is not guessed about. With "auto" see `detect`. `path` is the file that the edit is sent for,
    "" if the edit has to name it: it tells what may be a line of that file, and what is talk or a label.
    """
    text = edit.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise EditSyntaxError("empty_edit", "The edit is empty.", "Send the lines to be changed.")
    name = detect(text, path) if format == "auto" else format
    if (name == "lazy" and format == "auto") or (name == "whole" and _cannot_be_json(path)):
        _refuse_json(text, path)
    return _READERS[name](text, path)


def detect(edit: str, path: str = "") -> FormatName:
    """Return the format that an edit is written in; a lazy snippet if it has the form of no other.

    What comes first decides between formats that can quote each other: a diff may hold SEARCH blocks, and a SEARCH
    block may hold a diff. JSON only counts as an edit with keys that edit tools have and data files do not, unless the
    file that is edited is no JSON. A whole file is never guessed, but where a call says so.
    """
    rows = edit.split("\n")
    first = search_replace.first_opener(rows)
    above = edit if first is None else "\n".join(rows[:first])
    for name, looks_like in _PATCHES.items():
        if looks_like(above):
            return name
    if search_replace.looks_like(edit, path):
        return "search_replace"
    if first is None:
        plain = _cannot_be_json(path)
        if lines.looks_like(edit):
            return "lines"
        if replace_format.looks_like(edit, plain=plain):
            return "replace"
        if whole.looks_like(edit, plain=plain):
            return "whole"
    return "lazy"


def _cannot_be_json(path: str) -> bool:
    return kind_of(path) == "code" and language_of(path) != "yaml"


def _refuse_json(text: str, path: str) -> None:
    """Raise `EditSyntaxError` for a call that cannot be read, and for JSON that is to be the text of a program."""
    plain = _cannot_be_json(path)
    if whole.looks_like(text, plain=plain) or not (
        json_edit.holds_call(text, plain=plain) or (plain and json_edit.holds_json(text))
    ):
        return
    replace_format.parse_files(text)
    raise EditSyntaxError(
        "malformed",
        f"The edit is JSON, and no text of '{path}'.",
        'Send the lines to be changed, or {"old_string": "...", "new_string": "..."}.',
    )


_PATCHES: dict[FormatName, Callable[[str], bool]] = {"v4a": v4a.looks_like, "udiff": udiff.looks_like}
