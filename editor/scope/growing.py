"""Lines that an edit may touch, grown to the syntax that holds them, with margins that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from editor.scope.types import Span
from editor.syntax import Survey, Symbol

MAX_DEFINITION = 120
"""Lines. A longer definition is not taken whole: a window about the touched lines is enough."""
WINDOW = 20
"""Lines on each side of what is touched, where no definition of fitting length holds it."""
SOLID_MARGIN = 2
MAX_MARGIN = 6
"""Beyond that come margins: so many lines that are not blank, within so many lines."""


def grown(span: Span, lines: Sequence[str], seen: Survey | None) -> tuple[Span, Span]:
    """Return the smallest definition around a span (a window where there is none, or a long one), and with margins."""
    first, end = _around(span, lines, seen)
    return (first, end), (_margin(lines, first, -1), _margin(lines, end - 1, 1) + 1)


def _around(span: Span, lines: Sequence[str], seen: Survey | None) -> Span:
    longest = max(MAX_DEFINITION, span[1] - span[0])
    holding = [one for one in seen.symbols if _holds(one, span)] if seen is not None else []
    fitting = [one for one in holding if one.end_line - one.doc_line <= longest]
    if fitting:
        inner = min(fitting, key=lambda one: one.end_line - one.doc_line)
        return inner.doc_line, inner.end_line
    window = max(0, span[0] - WINDOW), min(len(lines), span[1] + WINDOW)
    return _snapped(span, window, seen.symbols) if seen is not None else window


def _holds(symbol: Symbol, span: Span) -> bool:
    """Tell whether a span lies in a definition; new lines at the very border of one may as well belong outside."""
    if span[0] == span[1]:
        return symbol.doc_line < span[0] < symbol.end_line
    return symbol.doc_line <= span[0] and span[1] <= symbol.end_line


def _snapped(span: Span, window: Span, symbols: Sequence[Symbol]) -> Span:
    """Move a window's ends to the nearest ends of definitions inside of it, half of it at least being kept."""
    starts = [one.doc_line for one in symbols if window[0] <= one.doc_line <= span[0] - WINDOW // 2]
    ends = [one.end_line for one in symbols if span[1] + WINDOW // 2 <= one.end_line <= window[1]]
    return min(starts, default=window[0]), max(ends, default=window[1])


def _margin(lines: Sequence[str], at: int, step: int) -> int:
    """Return the last line that is taken when walking outwards from `at`."""
    solid = 0
    for _ in range(MAX_MARGIN):
        if solid == SOLID_MARGIN or not 0 <= at + step < len(lines):
            break
        at += step
        solid += bool(lines[at].strip())
    return at
