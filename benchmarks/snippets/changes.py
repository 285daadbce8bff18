"""A change of a file, and what a snippet shows of it: lines, definitions, markers and instructions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from benchmarks.edit_formats import Span, diff_texts, has_same_ends
from editor.definitions import Symbol
from editor.grammars import find_language
from editor.syntax import Survey, survey


def get_indent(line: str) -> str:
    """Return the white space that a line begins with."""
    return line[: len(line) - len(line.lstrip())]


def dedent(lines: Sequence[str]) -> list[str]:
    """Move lines to the left until one begins at column 0; all of them must be indented alike, by tabs or spaces."""
    indents = [get_indent(line) for line in lines if line.strip()]
    common = min(indents, key=len, default="")
    if not all(indent.startswith(common) for indent in indents):
        return list(lines)
    return [line.removeprefix(common) if line.strip() else line for line in lines]


def find_indent_unit(lines: Sequence[str]) -> str | None:
    """Return the indentation of one level; None if lines mix tabs and spaces or none is indented."""
    indents = [indent for line in lines if line.strip() and (indent := get_indent(line))]
    if not indents or len({char for indent in indents for char in indent}) != 1:
        return None
    if indents[0][0] == "\t":
        return "\t"
    widths = Counter(len(indent) for indent in indents)
    # Aligned text has any width; the unit is what most widths are multiples of.
    return next((" " * size for size in (8, 4, 2) if _share_of_multiples(widths, size) > 0.9), None)


def convert_indent(line: str, unit: str, other: str) -> str:
    """Return the line with its whole levels in another unit; the rest of its indentation stays."""
    levels, rest = divmod(len(get_indent(line)), len(unit))
    return other * levels + unit[:1] * rest + line.lstrip() if line.strip() else line


def is_whole_levels(line: str, unit: str) -> bool:
    """Return whether a line's indentation consists of whole levels."""
    return not line.strip() or len(get_indent(line)) % len(unit) == 0


def _share_of_multiples(widths: Counter[int], size: int) -> float:
    return sum(number for width, number in widths.items() if width % size == 0) / widths.total()


WORDINGS = (
    "... existing code ...",
    "... existing code ...",
    "... rest of code ...",
    "... unchanged ...",
    "... rest of the file remains the same ...",
    "... (existing code) ...",
    "rest of the code unchanged",
    "...",
)
"""Wordings of markers; the one that services ask for is the most frequent."""
ODD_WORDINGS = (
    "...",
    "... (same as before)",
    "... (unchanged)",
    "... body unchanged",
    "... rest unchanged",
    "... keep everything above ...",
    "... keep the existing code as is",
    "... other members stay as they are ...",
    "... imports and earlier helpers unchanged ...",
    "... rest of the function stays the same ...",
    "... remaining lines unchanged until here ...",
    "...other entries as before...",
    "… unchanged …",
    "[... rest of the file unchanged ...]",
    "(same as before)",
    "rest unchanged",
)
"""Wordings of markers by models that were not asked for markers."""
WORD = re.compile(r"[A-Za-z_]\w{2,}")
PLAIN = "..."
"""A marker without a comment."""

_LINE_COMMENTS: Mapping[str, tuple[str, str]] = {
    "#": ("# ", ""),
    "//": ("// ", ""),
    "--": ("-- ", ""),
    "/*": ("/* ", " */"),
    "<!--": ("<!-- ", " -->"),
}
_COMMENT_OF: Mapping[str, str] = {
    **dict.fromkeys(("python", "ruby", "yaml", "toml", "bash"), "#"),
    **dict.fromkeys(
        ("javascript", "typescript", "tsx", "go", "rust", "java", "c", "cpp", "csharp", "php", "json"), "//"
    ),
    **dict.fromkeys(("html", "markdown"), "<!--"),
    "css": "/*",
    "sql": "--",
}
_INDENTED = frozenset({"python", "yaml", "markdown"})
_SHARE_PLAIN = 0.1
_SHARE_VARIED = 0.25


class Marker:
    """The markers of one snippet: mostly with one wording, as a model writes; `rng` decides."""

    def __init__(self, path: str, rng: Random, wordings: Sequence[str] = WORDINGS) -> None:
        self._language = find_language(path) or ""
        self._rng = rng
        self._varied = rng.random() < _SHARE_VARIED
        self._plain = rng.random() < _SHARE_PLAIN or self._language not in _COMMENT_OF
        self._wordings = wordings
        self._wording = rng.choice(wordings)

    def line(self, indent: str) -> str:
        """Return the next marker, indented; plain dots stand at column 0 in languages where indentation is syntax."""
        if self._plain:
            return PLAIN if self._language in _INDENTED or not self._language else indent + PLAIN
        wording = self._rng.choice(self._wordings) if self._varied else self._wording
        before, after = _LINE_COMMENTS[_COMMENT_OF[self._language]]
        return f"{indent}{before}{wording}{after}"


def render_comment(path: str, words: str) -> str | None:
    """Return the words as a comment line of the file's language, None where that is not known."""
    syntax = _COMMENT_OF.get(find_language(path) or "")
    if syntax is None:
        return None
    before, after = _LINE_COMMENTS[syntax]
    return f"{before}{words}{after}"


_MAX_CONTEXT = 12
_SMALL_GAP = 3


@dataclass(frozen=True)
class Change:
    """A text before and after, as lines: `a` the old ones, `b` the new ones (the end of the last line is no line)."""

    before: str
    after: str
    path: str

    @cached_property
    def a(self) -> list[str]:
        return self.before.removesuffix("\n").split("\n")

    @cached_property
    def b(self) -> list[str]:
        return self.after.removesuffix("\n").split("\n")

    @cached_property
    def spans(self) -> list[Span]:
        return diff_texts(self.a, self.b)

    @cached_property
    def old_survey(self) -> Survey | None:
        """The definitions of the old text; None without a grammar."""
        return survey(self.before, find_language(self.path))

    @cached_property
    def new_survey(self) -> Survey | None:
        """The definitions of the new text; None without a grammar."""
        return survey(self.after, find_language(self.path))

    @cached_property
    def _bare_a(self) -> list[str]:
        return [line.strip() for line in self.a]

    @property
    def changes_only_indentation(self) -> bool:
        """Whether some span changes nothing but the indentation of its lines."""
        return any(
            self._bare_a[span.a_start : span.a_end] == [line.strip() for line in self.b[span.b_start : span.b_end]]
            for span in self.spans
        )

    def is_deletion(self, span: Span) -> bool:
        """Return whether the span deletes much more than it writes; a snippet's gap there looks like an omission."""
        num_old, num_new = span.a_end - span.a_start, span.b_end - span.b_start
        return num_old > 2 * num_new + 2 or not any(line.strip() for line in self.b[span.b_start : span.b_end])

    def context(self, span: Span, num_lines: int) -> range | None:
        """Return the new lines to show for a span: it, and `num_lines` or more of those above and below.

        The context grows until it has words above and below, and one of the two is unique in the old text, or both if
        the span deletes lines. None if a dozen lines are not enough.
        """
        enough = all if self.is_deletion(span) else any
        for size in range(num_lines, _MAX_CONTEXT + 1):
            above = self._bare_a[max(0, span.a_start - size) : span.a_start]
            below = self._bare_a[span.a_end : span.a_end + size]
            if not (_says_something(above) or size >= span.a_start):
                continue
            if not (_says_something(below) or span.a_end + size >= len(self.a)):
                continue
            if enough(self._stands_once(side) for side in (above, below)):
                return range(max(0, span.b_start - size), min(len(self.b), span.b_end + size))
        return None

    def add_context(self, num_lines: int) -> set[int] | None:
        """Return the new lines to show: each span with `num_lines` or more around it; None if a span has no context."""
        shown: set[int] = set()
        for span in self.spans:
            context = self.context(span, num_lines)
            if context is None:
                return None
            shown |= set(context)
        return fill_gaps(shown, self.b)

    def around(self, span: Span) -> list[Symbol]:
        """Return the definitions of the new text that hold the whole span, outermost first."""
        found = self.new_survey
        return [one for one in (found.symbols if found else ()) if _holds(one, span)]

    def _stands_once(self, part: Sequence[str]) -> bool:
        lines = self._bare_a
        starts = (at for at, line in enumerate(lines) if part and line == part[0])
        return any(part) and sum(lines[at : at + len(part)] == part for at in starts) == 1


def find_change(before: str, after: str, path: str) -> Change | None:
    r"""Return the change with "\n" line endings; None if no snippet can express it.

    No snippet can express changes of the final newline, of blank lines at an end of the file or of spaces at line ends,
    nor texts with mixed line endings.
    """
    if _mixes_endings(before) or _mixes_endings(after) or not has_same_ends(before, after):
        return None
    change = Change(before.replace("\r\n", "\n"), after.replace("\r\n", "\n"), path)
    return change if _can_be_seen(change) else None


def list_header_lines(symbol: Symbol) -> range:
    """Return the lines of a definition above its body: decorators, name and parameters."""
    return range(symbol.first_line, max(symbol.first_line + 1, symbol.body_line or symbol.end_line))


def fill_gaps(shown: set[int], b: Sequence[str]) -> set[int]:
    """Return the lines shown, with the gaps between them that are short or blank."""
    more = set(shown)
    for gap in find_gaps(shown, len(b)):
        if len(gap) < _SMALL_GAP or not any(b[at].strip() for at in gap):
            more.update(gap)
    return more


def find_gaps(shown: set[int], num_lines: int) -> Iterator[range]:
    """Yield the runs of lines that are not shown."""
    start = 0
    for at in [*sorted(shown), num_lines]:
        if start < at:
            yield range(start, at)
        start = at + 1


def find_runs(shown: set[int]) -> Iterator[range]:
    """Yield the runs of lines that are shown."""
    start = before = -1
    for at in sorted(shown):
        if at != before + 1 or start < 0:
            if start >= 0:
                yield range(start, before + 1)
            start = at
        before = at
    if start >= 0:
        yield range(start, before + 1)


def _says_something(lines: Sequence[str]) -> bool:
    return any(char.isalnum() for line in lines for char in line)


def _holds(symbol: Symbol, span: Span) -> bool:
    if span.b_start == span.b_end:
        return symbol.first_line < span.b_start < symbol.end_line
    return symbol.first_line <= span.b_start and span.b_end <= symbol.end_line


def _mixes_endings(text: str) -> bool:
    return "\r" in text and (text.count("\r\n") != text.count("\n") or text.count("\r") != text.count("\n"))


def _can_be_seen(change: Change) -> bool:
    """Return whether every change is visible: not only spaces at line ends, no blank lines at an end of the file."""
    if not change.spans or not any(line.strip() for line in change.b):
        return False
    for span in change.spans:
        old = [line.rstrip() for line in change.a[span.a_start : span.a_end]]
        new = [line.rstrip() for line in change.b[span.b_start : span.b_end]]
        at_top = span.b_start == 0 and new and not new[0]
        at_end = span.b_end == len(change.b) and new and not new[-1]
        if old == new or at_top or at_end:
            return False
    return True


def instruct(change: Change, rng: Random) -> str:
    """Return an instruction of one line, with names that the change adds and removes."""
    old, new = (_list_words(lines) for lines in _list_changed(change))
    gone = [word for word in old if word not in set(_list_words(change.b))]
    come = [word for word in new if word not in set(_list_words(change.a))]
    if gone and come:
        said = rng.choice((f"Replace {gone[0]} with {come[0]}", f"Use {come[0]} instead of {gone[0]}"))
    elif gone:
        said = f"{rng.choice(('Remove', 'Drop', 'Delete'))} {' and '.join(gone[:2])}"
    elif come:
        said = f"Add {' and '.join(come[:2])}"
    elif old and not new:
        said = f"{rng.choice(('Remove', 'Drop'))} the {old[0]} line"
    else:
        said = f"Update {(new or old or ['the file'])[0]}"
    return said + rng.choice(("", ".", f" in {change.path.rpartition('/')[2]}"))


def instruct_removal(change: Change, rng: Random) -> str:
    """Return an instruction of one line that names the deleted lines, by the rarest name in each run of them."""
    counts = Counter(word for line in change.a for word in WORD.findall(line))
    named = []
    for span in find_holes(change):
        words = _list_words(change.a[span.a_start : span.a_end])
        named += [min(words, key=lambda word: counts[word])] if words else []
    verb = rng.choice(("Remove", "Drop", "Delete", "I will remove", "Get rid of"))
    return f"{verb} {' and '.join(dict.fromkeys(named)) or 'these lines'}"


def _list_changed(change: Change) -> tuple[list[str], list[str]]:
    """Return the deleted lines and the inserted ones."""
    old = [line for span in change.spans for line in change.a[span.a_start : span.a_end]]
    return old, [line for span in change.spans for line in change.b[span.b_start : span.b_end]]


def _list_words(lines: Sequence[str]) -> list[str]:
    """Return the identifiers of the lines, each once, in order."""
    found: Iterator[str] = (word for line in lines for word in WORD.findall(line))
    return list(dict.fromkeys(found))


def find_holes(change: Change) -> list[Span]:
    """Return the changes that only delete lines."""
    return [
        span
        for span in change.spans
        if not any(line.strip() for line in change.b[span.b_start : span.b_end])
        and any(line.strip() for line in change.a[span.a_start : span.a_end])
    ]
