"""Edits as text to the one intermediate form, whatever format they are written in."""

from __future__ import annotations

from typing import Literal

from editor.errors import EditSyntaxError
from editor.formats import lazy, search_replace
from editor.types import FormatName, ParsedEdit


def parse(edit: str, format: FormatName | Literal["auto"] = "auto") -> ParsedEdit:  # noqa: A002 (the request's name)
    r"""Return an edit in the intermediate form; raises `EditSyntaxError`.

    With "auto" a line that opens a SEARCH block makes it search/replace, everything else a lazy snippet. Line endings
    of the edit say nothing about the file, so "\r\n" is read as "\n".
    """
    text = edit.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.strip():
        raise EditSyntaxError("empty_edit", "The edit is empty.", "Send the lines to be changed.")
    if format == "search_replace" or (format == "auto" and search_replace.looks_like(text)):
        return search_replace.parse(text)
    return lazy.parse(text)
