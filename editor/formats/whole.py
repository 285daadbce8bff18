"""A whole file as the edit, with or without a fence and talk around it. Only taken where it is asked for."""

from __future__ import annotations

from editor.errors import EditSyntaxError
from editor.formats.fences import without_fence
from editor.types import ParsedEdit, Sketch


def parse_files(edit: str) -> tuple[ParsedEdit, ...]:
    """Return the file's lines as they are; raises `EditSyntaxError` if there are none.

    Placeholders are not looked for: the file may hold such lines of its own, which only the merge can tell.
    """
    lines = without_fence(edit.split("\n"))
    if lines and not lines[-1]:
        lines.pop()
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", "The edit is an empty fenced block.", "Send all lines of the file.")
    sketch = Sketch((tuple(lines),), opens_elided=False, closes_elided=False, complete=True)
    return (ParsedEdit("whole", sketch, "declared to be the whole file"),)
