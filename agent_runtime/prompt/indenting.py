"""Writes an edit in the file's unit of indentation, so that a model that copies its lines copies them right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_WIDTHS = (8, 4, 2)
_SHARE = 0.9
"""Of the indented lines, that are whole levels deep; the others are aligned with something."""


def in_unit_of(file_text: str, edit_text: str) -> str:
    """The edit with its levels indented as the file indents them; as it is where that cannot be told, or is so already.

    What tells it are the lines that stand in both, the file's once: two at least, and of the indented ones half must be
    as many levels deep in the edit as in the file. An edit that is written from column 0 stays as it is.
    """
    file_lines, edit_lines = file_text.split("\n"), edit_text.split("\n")
    unit, wanted = _unit(edit_lines), _unit(file_lines)
    if unit is None or wanted is None or unit == wanted:
        return edit_text
    pairs = list(_shared(edit_lines, file_lines))
    agree = [_levels(own, unit) == _levels(other, wanted) for own, other in pairs if own or other]
    if len(pairs) < 2 or not agree or sum(agree) < len(agree) / 2:
        return edit_text
    return "\n".join(_rewritten(line, unit, wanted) for line in edit_lines)


def _unit(lines: Sequence[str]) -> str | None:
    """What one level is indented by; None where nothing is indented, or by tabs and spaces."""
    indents = [indent for line in lines if line.strip() and (indent := _indent(line))]
    if not indents or len(set("".join(indents))) != 1:
        return None
    if indents[0][0] == "\t":
        return "\t"
    fit = (width for width in _WIDTHS if sum(len(one) % width == 0 for one in indents) >= _SHARE * len(indents))
    return " " * width if (width := next(fit, 0)) else None


def _shared(edit_lines: Sequence[str], file_lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The indentations, in the edit and in the file, of the lines that both have."""
    where: dict[str, list[str]] = {}
    for line in file_lines:
        where.setdefault(line.strip(), []).append(_indent(line))
    for line in edit_lines:
        found = where.get(line.strip(), ())
        if line.strip() and len(found) == 1:
            yield _indent(line), found[0]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _levels(indent: str, unit: str) -> float:
    return len(indent) / len(unit)


def _rewritten(line: str, unit: str, wanted: str) -> str:
    """A line's whole levels in another unit; what is left of its indentation stays."""
    levels = len(_indent(line)) // len(unit)
    return wanted * levels + line[len(unit) * levels :] if line.strip() else line
