"""Scopes of a hunk: the lines that are said to stand above it (`@@ class A`, the heading of a diff's section).

What a scope line opens reaches to the next line that is indented no deeper, and is no bracket, comment or text of a
literal that spans lines; a line that opens nothing (a heading of Markdown) reaches to the end of the file.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import islice, takewhile

from editor.matching.indentation import indent
from editor.matching.index import LineIndex, stripped
from editor.matching.literals import literal_lines

_TAB = 4
_PARAMETERS = re.compile(r"(?P<head>[^()]*\w\()\s*(?:\.{3}|…)?\s*\)\W*")
# Such lines stand at the indentation of the scope line without ending what it opens.
_CONTINUES = re.compile(r"[{})\]#/*;,]")


class Scopes:
    """Tells for the lines of one file which places lie inside given scopes."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index
        self._lines_of: dict[str, tuple[int, ...]] = {}
        self._end_of: dict[int, int] = {}
        self._literals: frozenset[int] | None = None
        self._by_text: list[int] = []
        self._ranges_of: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}

    def known(self, scopes: tuple[str, ...]) -> bool:
        """Tell whether every scope is a line of the file."""
        return all(self._stands(scope) for scope in scopes)

    def hold(self, scopes: tuple[str, ...], start: int, end: int) -> bool:
        """Tell whether lines [start, end) lie inside all scopes, outermost first, or hold the scope lines."""
        opened, limits = self._ranges(scopes)
        above = bisect_left(opened, end)
        return above > 0 and start < limits[above - 1]

    def _ranges(self, scopes: tuple[str, ...]) -> tuple[list[int], list[int]]:
        """Return where the innermost scope opens inside of the others, and how far all up to each one reach."""
        if scopes not in self._ranges_of:
            opened, limits = [-1], [len(self._index.lines)]
            for scope in scopes:
                inner: tuple[list[int], list[int]] = ([], [])
                for at in self._stands(scope):
                    around = bisect_left(opened, at)
                    if around and at < limits[around - 1]:
                        inner[0].append(at)
                        limit = min(self._extent(at), limits[around - 1])
                        inner[1].append(max(limit, inner[1][-1]) if inner[1] else limit)
                opened, limits = inner
            self._ranges_of[scopes] = opened, limits
        return self._ranges_of[scopes]

    def _stands(self, scope: str) -> tuple[int, ...]:
        """Return the lines that are the scope but for blanks around; else those that begin with it (`class A(B):`).

        Models leave out parameters: `def f()` is `def f(a, b):`, too, if no line begins with it.
        """
        known = self._lines_of.get(scope)
        if known is None:
            keyed, sought = self._index.by(stripped), stripped(scope)
            known = tuple(keyed.places.get(sought, ()))
            if not known and sought:
                known = self._that_begin_with(sought)
            if not known and (elided := _PARAMETERS.fullmatch(sought)) is not None:
                known = tuple(at for at, key in enumerate(keyed.keys) if key.startswith(elided["head"]))
            self._lines_of[scope] = known
        return known

    def _that_begin_with(self, sought: str) -> tuple[int, ...]:
        keys = self._index.by(stripped).keys
        if not self._by_text:
            self._by_text = sorted(range(len(keys)), key=keys.__getitem__)
        longer = re.compile(re.escape(sought) + (r"(?!\w)" if re.match(r"\w", sought[-1]) else ""))
        first = bisect_left(self._by_text, sought, key=keys.__getitem__)
        alike = takewhile(lambda at: keys[at].startswith(sought), islice(self._by_text, first, None))
        return tuple(sorted(at for at in alike if longer.match(keys[at])))

    def _extent(self, at: int) -> int:
        """Return the line behind the last one that belongs to what line `at` opens."""
        if at not in self._end_of:
            self._end_of[at] = self._find_end(at)
        return self._end_of[at]

    @property
    def _literal(self) -> frozenset[int]:
        if self._literals is None:
            self._literals = literal_lines(self._index.lines, docstrings=True)
        return self._literals

    def _find_end(self, at: int) -> int:
        lines = self._index.lines
        width = _width(lines[at])
        opened = False
        for below in range(at + 1, len(lines)):
            text = lines[below].strip()
            if not text or below in self._literal:
                continue
            deeper = _width(lines[below]) - width
            if deeper > 0:
                opened = True
            elif deeper < 0 or not _CONTINUES.match(text):
                return below if opened else len(lines)
        return len(lines)


def _begins_with(key: str, sought: str) -> bool:
    """Tell whether a line begins with a scope, and goes on with no other character of its last word."""
    is_word = sought[-1].isalnum() or sought[-1] == "_"
    behind = key[len(sought) : len(sought) + 1]
    return key.startswith(sought) and not (is_word and (behind.isalnum() or behind == "_"))


def _width(line: str) -> int:
    return len(indent(line).expandtabs(_TAB))
