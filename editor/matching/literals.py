"""Lines inside of literals that span lines (triple quotes, backticks, heredocs), whose blanks are text."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Whole strings and comments are passed over; one that the line does not close ends with the line.
_TOKEN = re.compile(
    r"(?P<triple>\"{3}|'{3})|(?P<ticks>`+)|<<[-~]?\s*(?P<quote>[\"']?)(?P<word>[A-Za-z_]\w*)(?P=quote)"
    r"|\"(?:\\.|[^\"\\])*+(?:\"|$)|'(?:\\.|[^'\\])*+(?:'|$)|(?:(?<=\s)|^)(?:#|//).*"
)
_DOCSTRING = re.compile(r"[rRuUbB]{0,2}(?:\"{3}|'{3})")


def literal_lines(lines: Sequence[str]) -> frozenset[int]:
    """Return the indices of the lines that begin inside of a literal; one that is never closed is none.

    Docstrings are left out: their text is indented with the code.
    """
    found: set[int] = set()
    at = 0
    while at < len(lines):
        closer = _opened(lines[at])
        end = _closing_row(lines, at + 1, closer) if closer else None
        if end is None:
            at += 1
            continue
        if not _DOCSTRING.match(lines[at].strip()):
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


def _closing_row(lines: Sequence[str], start: int, closer: str) -> int | None:
    is_word = closer[0].isalnum() or closer[0] == "_"
    rows = range(start, len(lines))
    return next((at for at in rows if (lines[at].strip(" \t;)") == closer if is_word else closer in lines[at])), None)
