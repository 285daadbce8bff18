"""A whole file as the edit, in a fence or not, or as the call of a tool that writes files.

Lines are only taken for a whole file where the format was named. A call says it itself:

    {"command": "create", "path": "a.py", "file_text": "x = 1\\n"}
    {"file_path": "a.py", "content": "x = 1\\n"}
"""

from __future__ import annotations

from editor.errors import EditSyntaxError
from editor.formats import json_edit, strays
from editor.formats.answers import read_answer
from editor.formats.json_edit import TEXT, Item
from editor.formats.lazy import refuse_other_formats
from editor.formats.targets import kind_of
from editor.types import ParsedEdit, Sketch

_HOW = 'Send all lines of the file, or {"path": "...", "file_text": "..."}.'


def looks_like(edit: str, *, plain: bool = False) -> bool:
    """Tell whether an edit is the call of a tool that writes files; with `plain`, keys of data files count too."""
    return json_edit.looks_like(edit, (TEXT,), plain=plain)


def parse_files(edit: str, path: str = "") -> tuple[ParsedEdit, ...]:
    """Return the file's lines as they are; raises `EditSyntaxError` if there are none, or they are no lines of a file.

    Placeholders are not looked for: the file may hold such lines of its own, which only the merge can tell.
    """
    if looks_like(edit, plain=kind_of(path) not in ("json", "unknown")):
        return _calls(edit)
    answer = read_answer(edit.split("\n"), path, whole=True)
    (lines,) = answer.parts
    first = next((at for at, line in enumerate(lines) if line.strip()), None)
    if first is not None and kind_of(path) in ("code", "json"):
        strays.refuse_strays(lines, (first,), "any block, and the format 'whole' was named")
    refuse_other_formats(answer, path, whole=True)
    sketch = _sketch("\n".join(lines), "The edit is an empty fenced block.")
    return (ParsedEdit("whole", sketch, "declared to be the whole file", prose=answer.prose),)


def _calls(edit: str) -> tuple[ParsedEdit, ...]:
    items, prose = json_edit.read(edit)
    try:
        files = json_edit.by_path(items)
        return tuple(_written(path, changes, prose) for path, changes in files.items())
    except EditSyntaxError as error:
        raise EditSyntaxError(error.code, error.message, _HOW) from error


def _written(path: str, items: list[Item], prose: str) -> ParsedEdit:
    if len(items) > 1:
        raise json_edit.malformed(
            f"The file '{path}' is written {len(items)} times." if path else "Two files are written."
        )
    fields = items[0].fields
    if fields.keys() - {TEXT, "note"}:
        raise json_edit.malformed("A call that writes a whole file has nothing but a path and the text.")
    sketch = _sketch(json_edit.text_of(items[0], TEXT), "The text of the file is empty.")
    creates = items[0].command in ("create", "create_file")
    what = "creates the file" if creates else "writes the whole file"
    action = "create" if creates else "update"
    return ParsedEdit("whole", sketch, f"a call that {what}", path, action, prose=prose)  # type: ignore[arg-type]


def _sketch(text: str, message: str) -> Sketch:
    lines = text.removesuffix("\n").split("\n")
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", message, "Send the lines of the file.")
    return Sketch((tuple(lines),), opens_elided=False, closes_elided=False, complete=True)
