"""Lines inside of literals that span lines (triple quotes, backticks, heredocs), whose blanks are text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

# Whole strings and comments are passed over; one that the line does not close ends with the line.
_TOKEN = re.compile(
    r"(?P<triple>\"{3}|'{3})|(?P<ticks>`+)|<<[-~]?\s*(?P<quote>[\"']?)(?P<word>[A-Za-z_]\w*)(?P=quote)"
    r"|\"(?:\\.|[^\"\\])*+(?:\"|$)|'(?:\\.|[^'\\])*+(?:'|$)|(?:(?<=\s)|^)(?:#|//).*"
)
_DOCSTRING = re.compile(r"[rRuUbB]{0,2}(?:\"{3}|'{3})")


def literal_lines(lines: Sequence[str], *, docstrings: bool = False) -> frozenset[int]:
    """Return the indices of the lines that begin inside of a literal; one that is never closed is none.

    Those of docstrings are left out if not asked for: their text is indented with the code.
    """
    found: set[int] = set()
    words: dict[str, list[int]] = {}
    for row, line in enumerate(lines):
        words.setdefault(line.strip(" \t;)"), []).append(row)
    at = 0
    while at < len(lines):
        closer = _opened(lines[at])
        end = _closing_row(lines, at + 1, closer, words) if closer else None
        if end is None:
            at += 1
            continue
        if docstrings or not _DOCSTRING.match(lines[at].strip()):
            found.update(range(at + 1, end + 1))
        # What a closing line opens again is passed over.
        at = end + 1
    return frozenset(found)


def _opened(line: str) -> str:
    """Return what closes the literal that a line leaves open: quotes, a backtick, a heredoc's word; '' if none."""
    at = 0
    while (token := _TOKEN.search(line, at)) is not None:
        at = token.end()
        closer = token["triple"] or (token["ticks"] if token["ticks"] == "`" else "")
        if closer:
            end = line.find(closer, at)
            if end < 0:
                return closer
            at = end + len(closer)
        elif token["word"]:
            return token["word"]
    return ""


def _closing_row(lines: Sequence[str], start: int, closer: str, words: dict[str, list[int]]) -> int | None:
    """Return the line that closes a literal; that of a heredoc holds nothing but its word."""
    if closer[0] in "\"'`":
        return next((at for at in range(start, len(lines)) if closer in lines[at]), None)
    rows = words.get(closer, [])
    below = bisect_left(rows, start)
    return rows[below] if below < len(rows) else None
