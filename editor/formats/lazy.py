"""Lazy snippets: literal lines, with placeholders such as `// ... existing code ...` for what stays as it is.

A snippet without any placeholder is read too; whether it is the whole file or a part of it is for the merge to say.
"""

from __future__ import annotations

from editor.errors import EditSyntaxError
from editor.formats.fences import without_fence
from editor.formats.placeholders import placeholder_lines
from editor.types import ParsedEdit, Sketch


def parse(edit: str) -> ParsedEdit:
    """Return the blocks between the placeholders; raises `EditSyntaxError` if there is nothing but placeholders."""
    lines = without_fence(edit.split("\n"))
    if lines and not lines[-1]:
        lines.pop()
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", "The edit is an empty fenced block.", "Send the lines to be changed.")
    placeholders = placeholder_lines(lines)
    blocks, opens_elided, closes_elided = _blocks(lines, placeholders)
    if not blocks:
        raise EditSyntaxError(
            "only_markers",
            "The edit holds only placeholder lines, and no line of code.",
            "Send the lines to be changed, with one or two unchanged lines on both sides.",
        )
    sketch = Sketch(blocks, opens_elided, closes_elided)
    return ParsedEdit("lazy", sketch, _detected(len(placeholders)))


def _blocks(lines: list[str], placeholders: frozenset[int]) -> tuple[tuple[tuple[str, ...], ...], bool, bool]:
    """Split at the placeholders; a block of blank lines is layout between two placeholders, and dropped."""
    runs: list[list[str]] = [[]]
    for at, line in enumerate(lines):
        if at in placeholders:
            runs.append([])
        else:
            runs[-1].append(line)
    literal = [index for index, run in enumerate(runs) if any(line.strip() for line in run)]
    blocks = tuple(tuple(runs[index]) for index in literal)
    return blocks, bool(literal) and literal[0] > 0, bool(literal) and literal[-1] < len(runs) - 1


def _detected(num_placeholders: int) -> str:
    if not num_placeholders:
        return "no SEARCH block and no placeholder: a snippet or a whole file"
    plural = "" if num_placeholders == 1 else "s"
    return f"lazy snippet with {num_placeholders} placeholder line{plural}"
