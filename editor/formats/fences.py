"""Markdown code fences: where they open and close."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = re.compile(r"(?P<indent>\s*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")
_HEAD = re.compile(r"#{1,6} \S|---$|<!--|<p\b|<h1\b|<div\b|!?\[")
_INFO_WORD = re.compile(r"[^\s:{]+")
_MARKDOWN_INFOS = frozenset({"markdown", "md", "mdx"})
# What opens a literal or comment of several lines, and what closes it.
_LITERAL = re.compile(
    r'"""|\'\'\'|^\s*/\*|^\s*<!--|^\s*--\[\[|^\s*\{-|(?:[=(:,]|\breturn)\s*`(?=[^`]*$)|^=begin\b|^=pod\b'
)
_CLOSING = {"/*": "*/", "<!--": "-->", "--[[": "]]", "{-": "-}", "=begin": "=end", "=pod": "=cut"}


@dataclass(frozen=True, slots=True)
class Fence:
    """A code fence: its first and its last line, and the language that its info string names ('' if it names none).

    An unclosed fence ends with the last line of the text.
    """

    start: int
    end: int
    ticks: str
    info: str
    indent: str
    is_closed: bool

    def get_inside(self, lines: Sequence[str]) -> tuple[str, ...]:
        """Return the lines between the two fence lines, without the indentation of the first."""
        rows = lines[self.start + 1 : self.end if self.is_closed else self.end + 1]
        return tuple(row.removeprefix(self.indent) for row in rows)


def strip_fence(lines: Sequence[str]) -> list[str]:
    """Return the lines inside of a fence that encloses everything; all lines if there is none."""
    fences = find_fences(lines)
    if len(fences) != 1 or not fences[0].is_closed:
        return list(lines)
    (fence,) = fences
    outside = (*lines[: fence.start], *lines[fence.end + 1 :])
    return list(lines if any(line.strip() for line in outside) else fence.get_inside(lines))


def is_fence(line: str) -> bool:
    """Return whether a line opens or closes a fence."""
    return _FENCE.fullmatch(line) is not None


def find_outer_fence(lines: Sequence[str], infos: tuple[str, ...]) -> range:
    """Return the lines inside the first fence if it has one of these info strings; none otherwise."""
    fence = next(iter(find_fences(lines)), None)
    if fence is None or not fence.is_closed or fence.info not in infos:
        return range(0)
    return range(fence.start + 1, fence.end)


def find_fences(lines: Sequence[str], *, indented: bool = False) -> tuple[Fence, ...]:
    """Return the outermost fences, at column 0 or (if `indented`) at any column, from top to bottom."""
    found: list[Fence] = []
    careful = True
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        if opened is None or (opened["indent"] and not indented):
            at += 1
            continue
        closed = _find_closing(lines, at, opened, careful=careful)
        if closed is None and careful:
            careful = False
            closed = _find_closing(lines, at, opened, careful=False)
        end = len(lines) - 1 if closed is None else closed
        found.append(Fence(at, end, opened["ticks"], _parse_info(opened), opened["indent"], closed is not None))
        at = end + 1
    return tuple(found)


def is_in_literal(lines: Sequence[str], at: int) -> bool:
    """Return whether a line is inside of a string or comment of several lines that is closed below it."""
    closer = _find_literal_end(lines[:at])
    return bool(closer) and any(closer in line for line in lines[at:])


def _find_closing(lines: Sequence[str], opened: int, first: re.Match[str], *, careful: bool) -> int | None:
    """Return where a fence closes: an info string opens a nested fence, a bare one closes the innermost.

    With `careful` a bare one also opens a nested fence inside of a literal, and in Markdown if blank lines indicate it.
    """
    ticks = [first["ticks"]]
    head = next((line for line in lines[opened + 1 : opened + 6] if line.strip()), "")
    is_markdown = _parse_info(first) in _MARKDOWN_INFOS or (not _parse_info(first) and _HEAD.match(head) is not None)
    seen = opened + 1
    closer = ""
    for at in range(opened + 1, len(lines)):
        fence = _FENCE.fullmatch(lines[at])
        if fence is None or fence["indent"] != first["indent"] or fence["ticks"][0] != ticks[-1][0]:
            continue
        if fence["info"].strip():
            ticks.append(fence["ticks"])
            continue
        if len(fence["ticks"]) < len(ticks[-1]):
            continue
        if careful and len(ticks) == 1 and len(fence["ticks"]) == len(ticks[0]):
            closer = _find_literal_end(lines[seen:at], closer)
            seen = at
            if closer if not is_markdown else _is_nested(lines, opened, at):
                ticks.append(fence["ticks"])
                continue
        ticks.pop()
        if not ticks:
            return at
    return None


def _is_nested(lines: Sequence[str], opened: int, at: int) -> bool:
    """Return whether a bare fence in Markdown opens a code block: text follows directly, and a blank line is above.

    Without blank lines it opens one only if the outer fence has no line above it.
    """
    above = lines[at - 1].strip() if at - 1 > opened else ""
    below = lines[at + 1].strip() if at + 1 < len(lines) else ""
    if not below or is_fence(lines[at + 1]):
        return False
    return not above or not any(line.strip() for line in lines[:opened])


def _find_literal_end(lines: Sequence[str], closer: str = "") -> str:
    """Return what would close the literal that is open after these lines, '' if none is."""
    for line in lines:
        at = 0
        while True:
            if closer:
                end = line.find(closer, at)
                if end < 0:
                    break
                at, closer = end + len(closer), ""
            opened = _LITERAL.search(line, at)
            if opened is None:
                break
            text = opened[0].strip()
            at, closer = opened.end(), "`" if text.endswith("`") else _CLOSING.get(text, text)
    return closer


def _parse_info(fence: re.Match[str]) -> str:
    """Return the language of an info string; a file name alone is none."""
    word = _INFO_WORD.match(fence["info"].strip())
    return word[0].lower() if word and not re.search(r"[./\\]", word[0]) else ""
