r"""Parses lazy snippets and whole files.

A snippet without any placeholder is parsed too; the merge decides whether it is the whole file or a part of it. Of a
chat answer only the code fences are parsed; a placeholder is implied above, between and below several fences.

Lines are taken for a whole file only if the format is named, or in a call:

    {"command": "create", "path": "a.py", "file_text": "x = 1\n"}
    {"file_path": "a.py", "content": "x = 1\n"}
"""

from __future__ import annotations

import re
from itertools import groupby
from operator import itemgetter

from editor.errors import EditSyntaxError
from editor.formats import json_edit
from editor.formats.answers import ChatAnswer, read_answer
from editor.formats.json_edit import TEXT, JsonChange
from editor.formats.markup import find_kind, is_context_diff, is_in_literal, is_normal_diff, refuse_strays
from editor.match.ladder import get_indent
from editor.placeholders import find_placeholders
from editor.types import ParsedEdit, Sketch

_SIGNED = re.compile(r"\+(?!\+).*\S.*")
_SIGNED_IN_DIFF = re.compile(r"\s*[-+].*\S.*")
# The first lines of a diff are among the first so many.
_MAX_HEAD = 20
_CONFLICT = (re.compile(r"<{7} .*"), re.compile(r"={7}"), re.compile(r">{7} .*"))


def parse(edit: str, path: str = "") -> ParsedEdit:
    """Parse a lazy snippet; raises `EditSyntaxError` if there is nothing but placeholders.

    `path` is the file that the snippet is for, "" if it is not known.
    """
    answer = read_answer(edit.split("\n"), path)
    parts = [part[:-1] if part and not part[-1] else part for part in answer.parts]
    lines = [line for part in parts for line in part]
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", "The edit is an empty fenced block.", "Send the lines to be changed.")
    refuse_other_formats(answer, path)
    sketch, num_placeholders = _build_sketch(parts)
    if not sketch.blocks:
        raise EditSyntaxError(
            "only_markers",
            "The edit holds only placeholder lines, and no line of code.",
            "Send the lines to be changed, with one or two unchanged lines on both sides.",
        )
    return ParsedEdit("lazy", sketch, _describe(num_placeholders, len(parts)), prose=answer.prose)


def refuse_other_formats(answer: ChatAnswer, path: str, *, whole: bool = False) -> None:
    """Raise `EditSyntaxError` for a diff, a merge conflict or blocks in place of a text of a file.

    A `whole` text that is no program may show a diff or a conflict; so may a string of a program.
    """
    is_text = whole and find_kind(path) in ("markdown", "text", "unknown")
    prose = answer.prose.split("\n")
    refuse_strays(prose, range(len(prose)), "the code fence")
    for part, info in zip(answer.parts, answer.infos, strict=True):
        in_diff = info in ("diff", "patch")
        signed = _SIGNED_IN_DIFF if in_diff else _SIGNED
        may_have = find_kind(path) == "patch" or (is_text and not in_diff)
        first = next((at for at, line in enumerate(part) if signed.fullmatch(line)), None)
        if first is not None and not may_have and (in_diff or not is_in_literal(part, first)):
            raise _other_format_error("has lines that begin with '+' or '-', as those of a diff")
        head = [at for at, line in enumerate(part[:_MAX_HEAD]) if line.strip()][:3]
        if any(is_normal_diff(part, at) or is_context_diff(part, at) for at in head):
            raise _other_format_error("is a diff of another kind than unified ('diff -u')")
        if _is_conflict(part) and not is_text:
            raise _other_format_error("begins with a merge conflict, of which no side is said to be meant")


def _other_format_error(what: str) -> EditSyntaxError:
    return EditSyntaxError(
        "malformed",
        f"The edit {what}.",
        "Send SEARCH/REPLACE blocks, a unified diff with '@@' lines, or the lines as they shall stand in the file.",
    )


def _is_conflict(part: tuple[str, ...]) -> bool:
    """Return whether a part begins with a merge conflict."""
    rows = iter(line for line in part if line.strip())
    first = next(rows, "")
    return bool(_CONFLICT[0].fullmatch(first)) and all(any(one.fullmatch(row) for row in rows) for one in _CONFLICT[1:])


def _build_sketch(parts: list[tuple[str, ...]]) -> tuple[Sketch, int]:
    """Return the sketch of parts, split at their placeholders, and the number of placeholders.

    A block of blank lines is layout between two placeholders, and dropped.
    """
    blocks: list[tuple[str, ...]] = []
    fences: list[int] = []
    gaps: list[list[str]] = [[]]
    elided_ends = len(parts) > 1
    opens = closes = elided_ends
    num_placeholders = 0
    for number, part in enumerate(parts):
        placeholders = find_placeholders(part)
        num_placeholders += len(placeholders)
        marked = [(at in placeholders, line) for at, line in enumerate(part)]
        for is_marker, run in groupby(marked, key=itemgetter(0)):
            found = [line for _, line in run]
            if is_marker:
                gaps[-1] += map(get_indent, found)
                opens |= not blocks
            elif any(line.strip() for line in found):
                blocks.append(tuple(found))
                fences.append(number)
                gaps.append([])
    closes |= bool(gaps[-1])
    used = gaps[(not opens) : len(gaps) - (not closes)]
    sketch = Sketch(
        tuple(blocks),
        opens,
        bool(blocks) and closes,
        False,
        tuple(map(tuple, used)),
        tuple(fences) if len(parts) > 1 else (),
    )
    return sketch, num_placeholders


def _describe(num_placeholders: int, num_parts: int) -> str:
    parts = f"{num_parts} code fences: " if num_parts > 1 else ""
    if not num_placeholders:
        return f"{parts}no SEARCH block and no placeholder: a snippet or a whole file"
    plural = "" if num_placeholders == 1 else "s"
    return f"{parts}lazy snippet with {num_placeholders} placeholder line{plural}"


_HOW = 'Send all lines of the file, or {"path": "...", "file_text": "..."}.'


def looks_like_whole_file(edit: str, *, plain: bool = False) -> bool:
    """Return whether an edit is the call of a tool that writes files; with `plain`, keys of data files count too."""
    return json_edit.looks_like(edit, (TEXT,), plain=plain)


def parse_whole_files(edit: str, path: str = "") -> tuple[ParsedEdit, ...]:
    """Parse whole files; raises `EditSyntaxError` if there are no lines, or no lines of a file.

    Placeholders are not looked for: the file may hold such lines of its own, which only the merge can decide.
    """
    if looks_like_whole_file(edit, plain=find_kind(path) not in ("json", "unknown")):
        return _parse_calls(edit)
    answer = read_answer(edit.split("\n"), path, whole=True)
    (lines,) = answer.parts
    first = next((at for at, line in enumerate(lines) if line.strip()), None)
    if first is not None and find_kind(path) in ("code", "json"):
        refuse_strays(lines, (first,), "any block, and the format 'whole' was named")
    refuse_other_formats(answer, path, whole=True)
    sketch = _build_whole_sketch("\n".join(lines), "The edit is an empty fenced block.")
    return (ParsedEdit("whole", sketch, "declared to be the whole file", prose=answer.prose),)


def _parse_calls(edit: str) -> tuple[ParsedEdit, ...]:
    items, prose = json_edit.read_changes(edit)
    try:
        files = json_edit.group_by_path(items)
        return tuple(_build_whole_file(path, changes, prose) for path, changes in files.items())
    except EditSyntaxError as error:
        raise EditSyntaxError(error.code, error.message, _HOW) from error


def _build_whole_file(path: str, items: list[JsonChange], prose: str) -> ParsedEdit:
    if len(items) > 1:
        raise json_edit.syntax_error(
            f"The file '{path}' is written {len(items)} times." if path else "Two files are written."
        )
    fields = items[0].fields
    if fields.keys() - {TEXT, "note"}:
        raise json_edit.syntax_error("A call that writes a whole file has nothing but a path and the text.")
    sketch = _build_whole_sketch(json_edit.get_text(items[0], TEXT), "The text of the file is empty.")
    creates = items[0].command in ("create", "create_file")
    what = "creates the file" if creates else "writes the whole file"
    action = "create" if creates else "update"
    return ParsedEdit("whole", sketch, f"a call that {what}", path, action, prose=prose)  # type: ignore[arg-type]


def _build_whole_sketch(text: str, message: str) -> Sketch:
    lines = text.removesuffix("\n").split("\n")
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", message, "Send the lines of the file.")
    return Sketch((tuple(lines),), opens_elided=False, closes_elided=False, complete=True)
