"""Lazy snippets: literal lines, with placeholders such as `// ... existing code ...` for what stays as it is.

A snippet without any placeholder is read too; whether it is the whole file or a part of it is for the merge to say.
"""

from __future__ import annotations

from itertools import groupby

from editor.errors import EditSyntaxError
from editor.formats.fences import without_fence
from editor.formats.placeholders import placeholder_lines
from editor.matching.ladder import indent
from editor.types import ParsedEdit, Sketch


def parse(edit: str) -> ParsedEdit:
    """Return the blocks between the placeholders; raises `EditSyntaxError` if there is nothing but placeholders."""
    lines = without_fence(edit.split("\n"))
    if lines and not lines[-1]:
        lines.pop()
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", "The edit is an empty fenced block.", "Send the lines to be changed.")
    placeholders = placeholder_lines(lines)
    sketch = _sketch(lines, placeholders)
    if not sketch.blocks:
        raise EditSyntaxError(
            "only_markers",
            "The edit holds only placeholder lines, and no line of code.",
            "Send the lines to be changed, with one or two unchanged lines on both sides.",
        )
    return ParsedEdit("lazy", sketch, _detected(len(placeholders)))


def _sketch(lines: list[str], placeholders: frozenset[int]) -> Sketch:
    """Split at the placeholders; a block of blank lines is layout between two placeholders, and dropped."""
    blocks: list[tuple[str, ...]] = []
    gaps: list[list[str]] = [[]]
    for is_placeholder, run in groupby(range(len(lines)), key=lambda at: at in placeholders):
        found = [lines[at] for at in run]
        if is_placeholder:
            gaps[-1] += map(indent, found)
        elif any(line.strip() for line in found):
            blocks.append(tuple(found))
            gaps.append([])
    indents = tuple(tuple(gap) for gap in gaps if gap)
    return Sketch(tuple(blocks), bool(gaps[0]), bool(blocks) and bool(gaps[-1]), marker_indents=indents)


def _detected(num_placeholders: int) -> str:
    if not num_placeholders:
        return "no SEARCH block and no placeholder: a snippet or a whole file"
    plural = "" if num_placeholders == 1 else "s"
    return f"lazy snippet with {num_placeholders} placeholder line{plural}"
