"""Hints of an edit put to use: they choose among places that fit, and never make one fit."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from editor.matching.indentation import indent
from editor.types import Hint


def choose(lines: Sequence[str], starts: Sequence[int], hint: Hint) -> int | None:
    """Return which of the places (an index into `starts`) the hint names, None if it names none or several."""
    if hint.line in starts:
        return starts.index(hint.line)
    if not hint.scopes:
        return None
    inside = [number for number, start in enumerate(starts) if _encloses(lines, hint.scopes, start)]
    return inside[0] if len(inside) == 1 else None


def by_distance(starts: Sequence[int], hint: Hint, limit: int) -> list[int]:
    """Return the indices of some places, the nearest to the hinted line first; in text order without one."""
    line = hint.line
    if line is None:
        return list(range(min(limit, len(starts))))
    return nsmallest(limit, range(len(starts)), key=lambda number: abs(starts[number] - line))


def _encloses(lines: Sequence[str], scopes: Sequence[str], start: int) -> bool:
    """Tell whether the scopes' lines stand above a place, outermost first, each with deeper lines only below it."""
    at, depth = start, len(indent(next((line for line in lines[start:] if line.strip()), "")).expandtabs(8))
    for scope in reversed(scopes):
        while True:
            at -= 1
            if at < 0:
                return False
            own = len(indent(lines[at]).expandtabs(8))
            if not lines[at].strip() or own >= depth:
                continue
            depth = own
            if lines[at].strip() == scope.strip():
                break
    return True
