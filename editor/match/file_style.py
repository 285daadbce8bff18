"""Adapts new lines to the file's indentation and characters."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from editor.diff import LineOp, count_common_ends, line_opcodes
from editor.match.ladder import (
    BLANKS,
    SPACES,
    IndentMapping,
    LineIndex,
    Retab,
    find_places,
    find_runs,
    fold,
    get_indent,
    measure_width,
    rstrip_blanks,
    strip_blanks,
)
from editor.types import Replacement, Rung

# Whole strings and comments are skipped; a string that the line does not close ends with the line.
_TOKEN = re.compile(
    r"(?P<triple>\"{3}|'{3})|(?P<ticks>`+)|<<[-~]?\s*(?P<quote>[\"']?)(?P<word>[A-Za-z_]\w*)(?P=quote)"
    r"|\"(?:\\.|[^\"\\])*+(?:\"|$)|'(?:\\.|[^'\\])*+(?:'|$)|(?:(?<=\s)|^)(?:#|//).*"
)
_DOCSTRING = re.compile(r"[rRuUbB]{0,2}(?:\"{3}|'{3})")


def find_literal_lines(lines: Sequence[str], *, docstrings: bool = False) -> frozenset[int]:
    """Return the indices of the lines that begin inside of a literal; an unclosed literal does not count.

    Docstrings count only with `docstrings`, as their text is indented with the code.
    """
    found: set[int] = set()
    words: dict[str, list[int]] = {}
    for row, line in enumerate(lines):
        words.setdefault(line.strip(" \t;)"), []).append(row)
    at = 0
    while at < len(lines):
        closer = _find_closer(lines[at])
        end = _find_closing_row(lines, at + 1, closer, words) if closer else None
        if end is None:
            at += 1
            continue
        if docstrings or not _DOCSTRING.match(lines[at].strip()):
            found.update(range(at + 1, end + 1))
        # A literal that the closing line opens again is ignored.
        at = end + 1
    return frozenset(found)


def _find_closer(line: str) -> str:
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


def _find_closing_row(lines: Sequence[str], start: int, closer: str, words: dict[str, list[int]]) -> int | None:
    """Return the line that closes a literal; for a heredoc a line with its word alone."""
    if closer[0] in "\"'`":
        return next((at for at in range(start, len(lines)) if closer in lines[at]), None)
    rows = words.get(closer, [])
    below = bisect_left(rows, start)
    return rows[below] if below < len(rows) else None


_OPENERS = (":", "{", "(", "[", ",", "=", ">", "do", "then", "\\")
# A single line of fewer letters and digits is at several depths by chance.
_MIN_EVIDENCE = 16


@dataclass(frozen=True, slots=True)
class AdaptedLines:
    """The lines to write, and the `doubt` about them, '' if they are certain.

    The characters of the file and the edit may be mixed wrongly, or new lines may be indented wrongly.
    """

    lines: tuple[str, ...]
    doubt: str = ""

    @property
    def sure(self) -> bool:
        """Return whether the lines may be written without asking."""
        return not self.doubt


LOOK_ALIKES = (
    "for characters that look alike (quotes, spaces, dashes), and the change itself touches those characters: which "
    "of them to write is open"
)


def adapt_to_file(
    change: Replacement,
    found: Sequence[str],
    shift: IndentMapping,
    rung: Rung,
    *,
    held: bool = False,
    yaml: bool = False,
) -> AdaptedLines | None:
    """Return `after` at the file's indentation, None if it cannot be moved there.

    Lines that `after` shares with `before` keep the file's spelling; so does the unchanged part of a changed line that
    was found by folding. `held` says that more than these lines confirms their place, `yaml` that indentation has
    meaning.
    """
    after: list[str] = []
    sure = True
    ops = line_opcodes(change.before, change.after)
    for op in ops:
        if op.equal:
            after += found[op.a_start : op.a_end]
            continue
        shifted = _shift_lines(change.after[op.b_start : op.b_end], shift)
        if shifted is None:
            return None
        if rung == "folded":
            before = _shift_lines(change.before[op.a_start : op.a_end], shift)
            if before is None:
                return None
            shifted, certain = restore_characters(found[op.a_start : op.a_end], before, shifted)
            sure = sure and certain
        after += shifted
    doubt = "" if sure else LOOK_ALIKES
    if not doubt and is_move(shift):
        doubt = _find_doubt_of_move(change, found, shift, [op for op in ops if not op.equal], held=held, yaml=yaml)
    return AdaptedLines(tuple(after), doubt)


def is_move(shift: IndentMapping) -> bool:
    """Return whether a mapping changes any indentation."""
    return isinstance(shift, Retab) or bool(shift.added or shift.removed)


def _find_doubt_of_move(
    change: Replacement,
    found: Sequence[str],
    shift: IndentMapping,
    changed: Sequence[LineOp],
    *,
    held: bool,
    yaml: bool,
) -> str:
    """Return the doubt whether new lines have to be indented like the lines that were found; '' if there is none."""
    old = [line for line in change.before if line.strip()]
    new = [at for op in changed for at in range(op.b_start, op.b_end) if change.after[at].strip()]
    keeps_depth = isinstance(shift, Retab) and shift.depth == 0
    if isinstance(shift, Retab) and _fits_unit_of_4(shift, old):
        return "for the indentation, and whether two or four spaces are a tab is open"
    if yaml and not keeps_depth:
        return "for the indentation, and in YAML the depth of a line is a part of its meaning"
    if (
        len({line.strip() for line in old}) == 1
        and not keeps_depth
        and not (len(new) <= 1 and (held or _is_stripped(old[0], change.after)))
    ):
        return "for the indentation, and a single line at another depth may be another line"
    lowest = min((measure_width(line) for line in old), default=0)
    inside = find_literal_lines(change.after) if new else frozenset[int]()
    if any(at in inside or measure_width(change.after[at]) < lowest for at in new):
        return "for the indentation, and the new lines hold text of a literal, or lines outside of the block"
    if not keeps_depth and _has_file_depth(change, found, new):
        return "for the indentation, and some new lines have the file's indentation already"
    return ""


def _is_stripped(old: str, after: Sequence[str]) -> bool:
    """Return whether a line was sent without indentation, and is too long to equal another line by chance."""
    return not get_indent(old) and not any(map(get_indent, after)) and sum(map(str.isalnum, old)) >= _MIN_EVIDENCE


def _fits_unit_of_4(shift: Retab, old: Sequence[str]) -> bool:
    """Return whether two spaces were taken for a tab although four may be one, as all lines have one depth."""
    widths = {measure_width(line) for line in old}
    return shift.unit == 2 and shift.to_tabs and len(widths) == 1 and min(widths) % 4 == 0 < min(widths)


def _has_file_depth(change: Replacement, found: Sequence[str], new: Sequence[int]) -> bool:
    """Return whether a new line has an indentation of the file's lines that no SEARCH line and no opener explains."""
    fine = {get_indent(line) for line in change.before if line.strip()}
    there = {get_indent(line) for line in found if line.strip()} - fine
    for at in new:
        above = next((line for line in reversed(change.after[:at]) if line.strip()), "")
        own = get_indent(change.after[at])
        opens = measure_width(own) > measure_width(above) and above.rstrip().endswith(_OPENERS)
        if own in there and own not in fine and not opens:
            return True
        fine.add(own)
    return False


def keep_file_spacing(have: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Return the lines; those that differ from the file's only by trailing spaces become the file's."""
    merged = list(lines)
    for op in line_opcodes([rstrip_blanks(line) for line in have], [rstrip_blanks(line) for line in lines]):
        if op.equal:
            merged[op.b_start : op.b_end] = have[op.a_start : op.a_end]
    return merged


def is_already_there(lines: Sequence[str], start: int, end: int, after: tuple[str, ...]) -> bool:
    """Return whether `after` is already around [start, end), for changes that add lines to the searched ones.

    A blank line that `after` ends with may be the final newline of the file.
    """
    if len(after) <= end - start:
        return False
    around = lines[max(0, end - len(after)) : start + len(after)]
    if next(find_runs(around, after), None) is not None:
        return True
    at = len(lines) - len(after) + 1
    return not after[-1] and 0 <= at <= start < end <= len(lines) and tuple(lines[at:]) == after[:-1]


def _shift_lines(lines: Sequence[str], shift: IndentMapping) -> list[str] | None:
    moved = [shift.apply(line) for line in lines]
    whole = [line for line in moved if line is not None]
    return whole if len(whole) == len(moved) else None


def indent_first_line(index: LineIndex, change: Replacement) -> Replacement | None:
    """Return a change with the indentation that only its first line was sent without; None for any other change.

    All other lines must be below it as they were sent, at one place only, whatever their depth. A new first line
    without indentation gets the same indentation.
    """
    before, after = change.before, change.after
    solid = [line for line in before if line.strip()]
    if len(solid) < 2 or not before[0].strip() or get_indent(before[0]) or before[0] in after[1:]:
        return None
    starts = index.key_by(strip_blanks).find_starts([strip_blanks(line) for line in before])
    if len(starts) != 1:
        return None
    found = index.lines[starts[0] : starts[0] + len(before)]
    own = get_indent(found[0])
    if not own or [rstrip_blanks(line) for line in found[1:]] != [rstrip_blanks(line) for line in before[1:]]:
        return None
    first = after[:1] if not after or get_indent(after[0]) or not after[0].strip() else (own + after[0],)
    return replace(change, before=(found[0], *before[1:]), after=(*first, *after[1:]))


_WORD_TOKEN = re.compile(r"\w+|[^\w\n]|\n")


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
    return [line.rstrip(BLANKS + SPACES) for line in lines]


def _find_common_runs(source: str, target: str) -> list[tuple[int, int, int]]:
    """Return (start in source, start in target, length) of runs that certainly are the same text, in characters.

    These are the common head and tail, and between them equal runs with a word that occurs once on both sides: a
    quote by itself could be any of the quotes.
    """
    a, b = _WORD_TOKEN.findall(source), _WORD_TOKEN.findall(target)
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


def find_line_replacements(index: LineIndex, change: Replacement) -> Iterator[list[str]]:
    """Yield the lines of a text with a change made at each place that the ladder finds for it."""
    lines, places = list(index.lines), find_places(index, change.before)
    for start, shift in zip(places.starts, places.shifts, strict=True) if places else ():
        end = start + len(change.before)
        adapted = adapt_to_file(change, lines[start:end], shift, places.rung) if places else None
        if adapted is not None:
            yield [*lines[:start], *adapted.lines, *lines[end:]]
