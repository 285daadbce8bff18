"""The first lines of definitions that a model is not given whole, so that it knows their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from editor.scope.types import Span
from editor.syntax import Survey, Symbol

MAX_LINES = 16
MAX_LINE_CHARS = 120

_WORD = re.compile(r"\w+")
_PLAIN = frozenset({"key", "column", "element", "rule", "property"})
"""Kinds whose names tell a model nothing: they are shown only where they stand around a region."""


def outline(lines: Sequence[str], seen: Survey | None, spans: Sequence[Span], mentioned: str) -> str:
    """Return up to `MAX_LINES` of them in the order of the file, "" without a grammar.

    What stands around a region comes first, then what `mentioned`, the edit's lines, name, then the outermost and
    nearest definitions.
    """
    if seen is None:
        return ""
    symbols = seen.symbols
    around = set(_ancestors(symbols, spans))
    words = set(_WORD.findall(mentioned))
    outside = [at for at, one in enumerate(symbols) if not _inside(one.name_line, spans)]
    shown = [at for at in outside if at in around or symbols[at].kind not in _PLAIN]

    def rank(at: int) -> tuple[bool, bool, int, int]:
        one = symbols[at]
        return at not in around, one.simple_name not in words, one.depth, _far(one, spans)

    shown.sort(key=rank)
    rows = sorted({symbols[at].name_line for at in shown[:MAX_LINES]})
    return "\n".join(lines[row].rstrip()[:MAX_LINE_CHARS] for row in rows)


def _ancestors(symbols: Sequence[Symbol], spans: Sequence[Span]) -> Iterable[int]:
    for at, one in enumerate(symbols):
        if any(one.first_line < first and end <= one.end_line for first, end in spans):
            yield at


def _inside(line: int, spans: Sequence[Span]) -> bool:
    return any(first <= line < end for first, end in spans)


def _far(symbol: Symbol, spans: Sequence[Span]) -> int:
    return min(max(first - symbol.name_line, symbol.name_line - end, 0) for first, end in spans)
