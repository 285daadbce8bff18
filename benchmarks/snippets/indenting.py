"""Wrong indentation that can be told: a block moved to column 0, or written with another unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def indent_of(line: str) -> str:
    """Return the white space that a line begins with."""
    return line[: len(line) - len(line.lstrip())]


def dedented(lines: Sequence[str]) -> list[str]:
    """Move lines to the left until one begins at column 0; all of them must be indented alike, by tabs or spaces."""
    indents = [indent_of(line) for line in lines if line.strip()]
    common = min(indents, key=len, default="")
    if not all(indent.startswith(common) for indent in indents):
        return list(lines)
    return [line.removeprefix(common) if line.strip() else line for line in lines]


def unit_of(lines: Sequence[str]) -> str | None:
    """Return what one level is indented by, None where lines mix tabs and spaces or none is indented."""
    indents = [indent for line in lines if line.strip() and (indent := indent_of(line))]
    if not indents or len({char for indent in indents for char in indent}) != 1:
        return None
    if indents[0][0] == "\t":
        return "\t"
    widths = Counter(len(indent) for indent in indents)
    # Aligned text has any width; the unit is what most widths are multiples of.
    return next((" " * size for size in (8, 4, 2) if _share_of_multiples(widths, size) > 0.9), None)


def in_unit(line: str, unit: str, other: str) -> str:
    """Write a line's whole levels with another unit; what is left of its indentation stays."""
    levels, rest = divmod(len(indent_of(line)), len(unit))
    return other * levels + unit[:1] * rest + line.lstrip() if line.strip() else line


def is_whole_levels(line: str, unit: str) -> bool:
    """Tell whether a line's indentation is made of whole levels, so that nobody can mistake its depth."""
    return not line.strip() or len(indent_of(line)) % len(unit) == 0


def _share_of_multiples(widths: Counter[int], size: int) -> float:
    return sum(number for width, number in widths.items() if width % size == 0) / widths.total()
