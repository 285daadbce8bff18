"""Lazy snippets: literal lines, with placeholders such as `// ... existing code ...` for what stays as it is.

A snippet without any placeholder is read too; whether it is the whole file or a part of it is for the merge to say.
Of a chat answer only the code fences are read; between two of them, above and below them a placeholder is understood.
"""

from __future__ import annotations

import re
from itertools import groupby
from operator import itemgetter

from editor.errors import EditSyntaxError
from editor.formats.answers import Answer, read_answer
from editor.formats.fences import opens_literal
from editor.formats.placeholders import placeholder_lines
from editor.formats.strays import is_context_diff, is_normal_diff, refuse_strays
from editor.formats.targets import kind_of
from editor.matching.ladder import indent
from editor.types import ParsedEdit, Sketch

_SIGNED = re.compile(r"\+(?!\+).*\S.*")
_SIGNED_IN_DIFF = re.compile(r"\s*[-+].*\S.*")
# The first lines of a diff stand among so many.
_MAX_HEAD = 20
_CONFLICT = (re.compile(r"<{7} .*"), re.compile(r"={7}"), re.compile(r">{7} .*"))


def parse(edit: str, path: str = "") -> ParsedEdit:
    """Return the blocks between the placeholders; raises `EditSyntaxError` if there is nothing but placeholders.

    `path` is the file that the snippet is for, "" if it is not known.
    """
    answer = read_answer(edit.split("\n"), path)
    parts = [_without_last_newline(part) for part in answer.parts]
    lines = [line for part in parts for line in part]
    if not any(line.strip() for line in lines):
        raise EditSyntaxError("empty_edit", "The edit is an empty fenced block.", "Send the lines to be changed.")
    refuse_other_formats(answer, path)
    sketch, num_placeholders = _sketch(parts)
    if not sketch.blocks:
        raise EditSyntaxError(
            "only_markers",
            "The edit holds only placeholder lines, and no line of code.",
            "Send the lines to be changed, with one or two unchanged lines on both sides.",
        )
    return ParsedEdit("lazy", sketch, _detected(num_placeholders, len(parts)), prose=answer.prose)


def refuse_other_formats(answer: Answer, path: str, *, whole: bool = False) -> None:
    """Raise `EditSyntaxError` for a text that is no text of a file, but a diff, a merge conflict or blocks.

    A `whole` text that is no program may show a diff or a conflict; so may a string of a program.
    """
    is_text = whole and kind_of(path) in ("markdown", "text", "unknown")
    prose = answer.prose.split("\n")
    refuse_strays(prose, range(len(prose)), "the code fence")
    for part, info in zip(answer.parts, answer.infos, strict=True):
        in_diff = info in ("diff", "patch")
        signed = _SIGNED_IN_DIFF if in_diff else _SIGNED
        may_have = kind_of(path) == "patch" or (is_text and not in_diff)
        first = next((at for at, line in enumerate(part) if signed.fullmatch(line)), None)
        if first is not None and not may_have and (in_diff or not opens_literal(part, first)):
            raise _other("has lines that begin with '+' or '-', as those of a diff")
        head = [at for at, line in enumerate(part[:_MAX_HEAD]) if line.strip()][:3]
        if any(is_normal_diff(part, at) or is_context_diff(part, at) for at in head):
            raise _other("is a diff of another kind than unified ('diff -u')")
        if _is_conflict(part) and not is_text:
            raise _other("begins with a merge conflict, of which no side is said to be meant")


def _other(what: str) -> EditSyntaxError:
    return EditSyntaxError(
        "malformed",
        f"The edit {what}.",
        "Send SEARCH/REPLACE blocks, a unified diff with '@@' lines, or the lines as they shall stand in the file.",
    )


def _is_conflict(part: tuple[str, ...]) -> bool:
    """Tell whether a part begins with a merge conflict."""
    rows = iter(line for line in part if line.strip())
    first = next(rows, "")
    return bool(_CONFLICT[0].fullmatch(first)) and all(any(one.fullmatch(row) for row in rows) for one in _CONFLICT[1:])


def _without_last_newline(part: tuple[str, ...]) -> tuple[str, ...]:
    return part[:-1] if part and not part[-1] else part


def _sketch(parts: list[tuple[str, ...]]) -> tuple[Sketch, int]:
    """Split at the placeholders, and between parts; return how many placeholders there are, too.

    A block of blank lines is layout between two placeholders, and dropped.
    """
    blocks: list[tuple[str, ...]] = []
    fences: list[int] = []
    gaps: list[list[str]] = [[]]
    elided_ends = len(parts) > 1
    opens = closes = elided_ends
    num_placeholders = 0
    for number, part in enumerate(parts):
        placeholders = placeholder_lines(part)
        num_placeholders += len(placeholders)
        marked = [(at in placeholders, line) for at, line in enumerate(part)]
        for is_marker, run in groupby(marked, key=itemgetter(0)):
            found = [line for _, line in run]
            if is_marker:
                gaps[-1] += map(indent, found)
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


def _detected(num_placeholders: int, num_parts: int) -> str:
    parts = f"{num_parts} code fences: " if num_parts > 1 else ""
    if not num_placeholders:
        return f"{parts}no SEARCH block and no placeholder: a snippet or a whole file"
    plural = "" if num_placeholders == 1 else "s"
    return f"{parts}lazy snippet with {num_placeholders} placeholder line{plural}"
