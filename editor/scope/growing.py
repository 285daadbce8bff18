"""Lines that an edit may touch, grown to the syntax that holds them, with margins that stay as they are."""

from __future__ import annotations

from collections.abc import Sequence

from editor.scope.types import Span
from editor.syntax import Survey, Symbol

MAX_DEFINITION = 120
"""Lines. A longer definition is not taken whole: a window about the touched lines is enough."""
WINDOW = 20
"""Lines on each side of what is touched, where no definition of fitting length holds it."""
MAX_NEIGHBOUR = 10
"""Lines. A definition next to a region is its margin as a whole, or if it is longer, not at all: a region that ends in
the middle of a definition tempts a model to write on."""
SOLID_MARGIN = 2
MAX_MARGIN = 6
"""Next to other code the margin is so many lines that are not blank, within so many lines."""


def grown(span: Span, lines: Sequence[str], seen: Survey | None) -> tuple[Span, Span]:
    """Return the smallest definition around a span (a window where there is none, or a long one), and with margins."""
    symbols = seen.symbols if seen is not None else ()
    first, end = _around(span, lines, symbols)
    return (first, end), (_above(lines, symbols, first), _below(lines, symbols, end))


def _around(span: Span, lines: Sequence[str], symbols: Sequence[Symbol]) -> Span:
    first, end = _without_blank_ends(span, lines)
    longest = max(MAX_DEFINITION, end - first)
    fitting = [one for one in symbols if _holds(one, (first, end)) and one.end_line - one.doc_line <= longest]
    if fitting:
        inner = min(fitting, key=lambda one: one.end_line - one.doc_line)
        return min(span[0], inner.doc_line), max(span[1], inner.end_line)
    window = max(0, span[0] - WINDOW), min(len(lines), span[1] + WINDOW)
    starts = [one.doc_line for one in symbols if window[0] <= one.doc_line <= span[0] - WINDOW // 2]
    ends = [one.end_line for one in symbols if span[1] + WINDOW // 2 <= one.end_line <= window[1]]
    return min(starts, default=window[0]), max(ends, default=window[1])


def _without_blank_ends(span: Span, lines: Sequence[str]) -> Span:
    solid = [at for at in range(*span) if lines[at].strip()]
    return (solid[0], solid[-1] + 1) if solid else span


def _holds(symbol: Symbol, span: Span) -> bool:
    """Tell whether a span lies in a definition; new lines at the very border of one may as well belong outside."""
    if span[0] == span[1]:
        return symbol.doc_line < span[0] < symbol.end_line
    return symbol.doc_line <= span[0] and span[1] <= symbol.end_line


def _above(lines: Sequence[str], symbols: Sequence[Symbol], first: int) -> int:
    """Return where the margin above a region begins."""
    end = first
    while end and not lines[end - 1].strip():
        end -= 1
    starts = [one.doc_line for one in symbols if one.end_line == end]
    if starts:
        whole = [start for start in starts if end - start <= MAX_NEIGHBOUR]
        return min(whole, default=first)
    return _solid_margin(lines, first, -1)


def _below(lines: Sequence[str], symbols: Sequence[Symbol], end: int) -> int:
    """Return where the margin below a region ends."""
    first = end
    while first < len(lines) and not lines[first].strip():
        first += 1
    ends = [one.end_line for one in symbols if one.doc_line == first]
    if ends:
        whole = [end_line for end_line in ends if end_line - first <= MAX_NEIGHBOUR]
        return max(whole, default=end)
    return _solid_margin(lines, end - 1, 1) + 1


def _solid_margin(lines: Sequence[str], at: int, step: int) -> int:
    """Return the last line that is taken when walking outwards from `at`."""
    num_solid = 0
    for _ in range(MAX_MARGIN):
        if num_solid == SOLID_MARGIN or not 0 <= at + step < len(lines):
            break
        at += step
        num_solid += bool(lines[at].strip())
    return at
