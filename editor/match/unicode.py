"""Unicode folding of characters that models write in place of similar ones, such as a space for an NBSP.

Unicode spaces are folded to a space, curly quotes and primes to straight quotes, dashes and the minus sign to `-`, `…`
to three dots, fullwidth forms to ASCII. Combining marks are composed (NFC), zero-width characters and soft hyphens are
dropped.
Folding only finds places: `restore_characters` restores the file's own characters in a partly changed line.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from editor.diff import count_common_ends, count_common_prefix, line_opcodes

BLANKS = " \t\r"
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_TABLE: dict[int, str] = {
    **dict.fromkeys(map(ord, _SPACES), " "),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b\u2032\u02bc"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f\u2033"), '"'),
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63"), "-"),
    **dict.fromkeys(map(ord, "\u200b\u2060\ufeff\u00ad"), ""),
    **{code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},
    0x2026: "...",
}
_TOKEN = re.compile(r"\w+|[^\w\n]|\n")


def fold(text: str) -> str:
    """Return a text with each look-alike replaced by its common form."""
    return text if text.isascii() else unicodedata.normalize("NFC", text).translate(_TABLE)


def describe_difference(sent: str, found: str) -> str:
    """Name the first character in which two lines differ that fold to the same: 'U+00A0 (NO-BREAK SPACE) at column 7'.

    Returns '' if they are equal, or differ otherwise.
    """
    if sent == found or fold(sent).rstrip(BLANKS) != fold(found).rstrip(BLANKS):
        return ""
    at = count_common_prefix(sent, found)
    for line, whose in ((found, "in the file"), (sent, "in the edit")):
        if at < len(line) and not line[at].isascii():
            name = unicodedata.name(line[at], "unnamed")
            return f"U+{ord(line[at]):04X} ({name}) {whose} at column {at + 1}"
    return ""


def restore_characters(found: Sequence[str], before: Sequence[str], after: Sequence[str]) -> tuple[list[str], bool]:
    """Return `after` with the characters of `found` where it repeats parts of `before`, and whether that is certain.

    `found` and `before` fold to the same lines except for blanks at line ends. It is uncertain where the changed part
    removes characters that only the file has, or writes quotes next to the file's own: `“a”` must not become `“b"`.
    """
    if list(found) == list(before) or not before or not after:
        return list(after), True
    source, target = "\n".join(_trim_lines(before)), "\n".join(after)
    spelled = _Spelling(source, "\n".join(_trim_lines(found)))
    pieces: list[str] = []
    sure = spelled.known
    at_source = at_target = 0
    for start, start_target, length in [*_find_common_runs(source, target), (len(source), len(target), 0)]:
        written = target[at_target:start_target]
        sure = sure and spelled.is_own(at_source, start) and not spelled.has_odd_quotes(written)
        kept = spelled.spell(start, start + length)
        sure = sure and kept is not None
        pieces += [written, kept if kept is not None else target[start_target : start_target + length]]
        at_source, at_target = start + length, start_target + length
    return "".join(pieces).split("\n"), sure


class _Spelling:
    """Gives the file's spelling of any range of a text that folds to the same."""

    def __init__(self, source: str, file: str) -> None:
        self._source, self._file = source, file
        folded_source, self._source_marks = _mark_characters(source)
        folded_file, self._file_marks = _mark_characters(file)
        self.known = folded_source == folded_file == fold(source) == fold(file)

    def spell(self, start: int, end: int) -> str | None:
        """Return the file's text for source[start:end); None if the range cuts one of its characters."""
        first, last = self._find_place(start), self._find_place(end)
        return None if first is None or last is None else self._file[first:last]

    def is_own(self, start: int, end: int) -> bool:
        """Return whether source[start:end) is equal to the file's text."""
        return self.spell(start, end) == self._source[start:end]

    def has_odd_quotes(self, text: str) -> bool:
        """Return whether a text holds straight quotes where the file has curly ones."""
        return any(quote in text and any(c != quote and fold(c) == quote for c in self._file) for quote in "\"'")

    def _find_place(self, at: int) -> int | None:
        if not self.known:
            return None
        row = bisect_left(self._source_marks, (at, -1))
        if row == len(self._source_marks) or self._source_marks[row][0] != at:
            return None
        folded = self._source_marks[row][1]
        row = bisect_left(self._file_marks, folded, key=lambda mark: mark[1])
        if row == len(self._file_marks) or self._file_marks[row][1] != folded:
            return None
        return self._file_marks[row][0] if at < len(self._source) else len(self._file)


def _mark_characters(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return the folded text and (index in the text, index in the folded text) of every border between characters."""
    marks: list[tuple[int, int]] = []
    folded: list[str] = []
    length = at = 0
    while at < len(text):
        end = at + 1
        while end < len(text) and _is_combining(text[end]):
            end += 1
        marks.append((at, length))
        folded.append(fold(text[at:end]))
        length += len(folded[-1])
        at = end
    return "".join(folded), [*marks, (len(text), length)]


def _is_combining(char: str) -> bool:
    # Vowels and finals of Hangul compose with the character before them, without being combining marks.
    return not char.isascii() and (unicodedata.combining(char) != 0 or "\u1160" <= char <= "\u11ff")


def _trim_lines(lines: Sequence[str]) -> list[str]:
    return [line.rstrip(BLANKS + _SPACES) for line in lines]


def _find_common_runs(source: str, target: str) -> list[tuple[int, int, int]]:
    """Return (start in source, start in target, length) of runs that certainly are the same text, in characters.

    These are the common head and tail, and between them equal runs with a word that occurs once on both sides: a
    quote by itself could be any of the quotes.
    """
    a, b = _TOKEN.findall(source), _TOKEN.findall(target)
    head, tail = count_common_ends(a, b)
    inner_a, inner_b = a[head : len(a) - tail], b[head : len(b) - tail]
    counts_a, counts_b = Counter(inner_a), Counter(inner_b)
    runs = [(0, 0, head)]
    for op in line_opcodes(inner_a, inner_b):
        words = inner_a[op.a_start : op.a_end]
        if op.equal and any(word[0].isalnum() and counts_a[word] == counts_b[word] == 1 for word in words):
            runs.append((head + op.a_start, head + op.b_start, len(words)))
    runs.append((len(a) - tail, len(b) - tail, tail))
    at_a, at_b = _list_offsets(a), _list_offsets(b)
    return [(at_a[i], at_b[j], at_a[i + n] - at_a[i]) for i, j, n in runs if n]


def _list_offsets(tokens: Sequence[str]) -> list[int]:
    offsets = [0]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return offsets
