r"""SEARCH/REPLACE blocks, as aider, Cline and Roo Code have models write them.

    path/to/file.py                 optional, ignored like all else between blocks (fences, talk)
    <<<<<<< SEARCH                  or `------- SEARCH`
    lines that stand in the file
    =======
    lines that shall stand there
    >>>>>>> REPLACE                 or `+++++++ REPLACE`

Markers stand at column 0 and are five to nine characters long, **the three of one block equally long**: so a file that
itself holds `=======` (a merge conflict, a heading) is edited with markers of another length. A second divider or
opener of the same length inside a block would have to be guessed about, and is refused instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from editor.errors import EditSyntaxError
from editor.types import ParsedEdit, Replacement

_OPENER = re.compile(r"(<{5,9}|-{5,9}) ?SEARCH>?\s*")
_DIVIDER = re.compile(r"(={5,9})\s*")
_CLOSER = re.compile(r"(>{5,9}|\+{5,9}) ?REPLACE\s*")
_CLOSER_OF = {"<": ">", "-": "+"}
_ROO_HEADER = re.compile(r"\s*:(start|end)_line:\s*\d+\s*")
_ROO_RULE = re.compile(r"-{5,9}\s*")


def looks_like(edit: str) -> bool:
    """Tell whether any line opens a SEARCH block."""
    return any(_OPENER.fullmatch(line) for line in edit.split("\n"))


def parse(edit: str) -> ParsedEdit:
    """Return the blocks of an edit; raises `EditSyntaxError` for one that is not complete and unambiguous."""
    changes = tuple(_blocks(edit.split("\n")))
    if not changes:
        raise _malformed("The edit holds no SEARCH block.")
    if not any(change.before or change.after for change in changes):
        raise EditSyntaxError(
            "empty_edit",
            "Every SEARCH/REPLACE block of the edit is empty.",
            "Put the lines to find under SEARCH and the lines to write under =======.",
        )
    plural = "" if len(changes) == 1 else "s"
    return ParsedEdit("search_replace", changes, f"{len(changes)} SEARCH/REPLACE block{plural}")


def _blocks(lines: list[str]) -> Iterator[Replacement]:
    at = 0
    while at < len(lines):
        if _OPENER.fullmatch(lines[at]):
            replacement, at = _block(lines, at)
            yield replacement
        elif _CLOSER.fullmatch(lines[at]):
            raise _malformed(f"Line {at + 1} of the edit closes a block that was not opened.")
        else:
            at += 1


def _block(lines: list[str], opened: int) -> tuple[Replacement, int]:
    """Return the block that opens at `opened`, and the line behind it."""
    marker = _marker(_OPENER, lines[opened])
    divider, closer = "=" * len(marker), _CLOSER_OF[marker[0]] * len(marker)
    closed = _closing_line(lines, opened, marker, closer)
    dividers = [at for at in range(opened + 1, closed) if _marker(_DIVIDER, lines[at]) == divider]
    if not dividers:
        raise _malformed(f"The block at line {opened + 1} of the edit has no divider line '{divider}'.")
    if len(dividers) > 1:
        where = ", ".join(str(at + 1) for at in dividers)
        raise _malformed(f"The block at line {opened + 1} of the edit could be divided at lines {where}.")
    before = _without_roo_header(lines[opened + 1 : dividers[0]])
    return Replacement(tuple(before), tuple(lines[dividers[0] + 1 : closed])), closed + 1


def _closing_line(lines: list[str], opened: int, marker: str, closer: str) -> int:
    for at in range(opened + 1, len(lines)):
        if _marker(_CLOSER, lines[at]) == closer:
            return at
        if _marker(_OPENER, lines[at]) == marker:
            raise _malformed(f"Line {at + 1} of the edit opens a block inside the block of line {opened + 1}.")
    raise _malformed(f"The block at line {opened + 1} of the edit has no end line '{closer} REPLACE'.")


def _marker(pattern: re.Pattern[str], line: str) -> str:
    found = pattern.fullmatch(line)
    return found[1] if found else ""


def _without_roo_header(before: list[str]) -> list[str]:
    """Drop Roo's `:start_line:` hints and the rule below them; a rule without hints is text of the file."""
    start = 0
    while start < len(before) and _ROO_HEADER.fullmatch(before[start]):
        start += 1
    if 0 < start < len(before) and _ROO_RULE.fullmatch(before[start]):
        start += 1
    return before[start:]


def _malformed(message: str) -> EditSyntaxError:
    return EditSyntaxError(
        "malformed",
        message,
        "Write each block as '<<<<<<< SEARCH', the old lines, '=======', the new lines, '>>>>>>> REPLACE', all three "
        "markers at column 0 and equally long; use 8 or 9 characters if the text itself holds such lines.",
    )
