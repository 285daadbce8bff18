r"""What Roo Code adds to SEARCH/REPLACE blocks: line hints, escaped markers, line numbers before every line.

    <<<<<<< SEARCH
    :start_line:12
    -------
    12 | old line
    =======
    12 | new line
    >>>>>>> REPLACE

A line of the file that begins like a marker is written with a backslash before it (`\=======`). `:end_line:` is read
and not used, as in Roo's own `multi-search-replace.ts`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from editor.errors import EditSyntaxError
from editor.types import Hint, Replacement

_HEADER = re.compile(r"\s*:(?P<which>start|end)_line:\s*(?P<line>\d{1,18})\s*")
_RULE = re.compile(r"-{5,9}\s*")
_ESCAPED = re.compile(r"\\(?=<{7}|={7}|>{7}|-{7}|:start_line:|:end_line:)")
_ESCAPED_MARKER = re.compile(r"\\(<{7}|={7}|>{7})")
_NUMBERED = re.compile(r"\s*(?P<line>\d{1,18})\s+\|(?!\|) ?(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the blocks of one edit are read; `escapes` tells that a backslash before a marker is taken away."""

    escapes: bool

    def read(self, before: list[str], after: list[str]) -> Replacement:
        """Return the block with these lines between its markers; raises `EditSyntaxError`."""
        line, before = _without_header(before)
        if not self.escapes and any(map(_ESCAPED_MARKER.match, after)) and not any(map(_ESCAPED_MARKER.match, before)):
            raise EditSyntaxError(
                "malformed",
                "A REPLACE line begins with a backslash and a marker: the backslash may escape it, or be meant.",
                "Use markers of 8 or 9 characters, and write such lines as they shall stand in the file.",
            )
        if self.escapes or any(map(_ESCAPED_MARKER.match, before)):
            before, after = _unescaped(before), _unescaped(after)
        sent = Replacement(tuple(before), tuple(after), Hint(line=line))
        numbered = _without_numbers(before, after)
        if numbered is None:
            return sent
        first, before, after = numbered
        hint = Hint(line=first if line is None else line)
        return Replacement(tuple(before), tuple(after), hint, verbatim=sent)


def dialect(lines: list[str]) -> Dialect:
    """Return the dialect of an edit: it is Roo's if any of its blocks has a line hint."""
    return Dialect(escapes=any(map(_HEADER.fullmatch, lines)))


def _without_header(before: list[str]) -> tuple[int | None, list[str]]:
    """Return the hint as an index, and the lines below hints and rule; a rule without hints is text of the file."""
    line: int | None = None
    start = 0
    while start < len(before) and (header := _HEADER.fullmatch(before[start])):
        if header["which"] == "start" and int(header["line"]) > 0:
            line = int(header["line"]) - 1
        start += 1
    if 0 < start < len(before) and _RULE.fullmatch(before[start]):
        start += 1
    return line, before[start:]


def _unescaped(lines: list[str]) -> list[str]:
    return [_ESCAPED.sub("", line, count=1) if line.startswith("\\") else line for line in lines]


def _without_numbers(before: list[str], after: list[str]) -> tuple[int, list[str], list[str]] | None:
    """Return the first number and the lines without numbers, if SEARCH counts up and REPLACE has numbers too."""
    old, new = [_NUMBERED.fullmatch(line) for line in before], [_NUMBERED.fullmatch(line) for line in after]
    if not before or not all(old) or not all(new):
        return None
    numbers = [int(one["line"]) for one in old if one]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] < 1:
        return None
    return numbers[0] - 1, [one["text"] for one in old if one], [one["text"] for one in new if one]
