"""Which lines of the new text a snippet shows: the changed ones, and as many about them as say where they belong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from benchmarks.rendering import Span, changes, ends_alike
from editor.definitions import Symbol
from editor.grammars import find_language
from editor.syntax import Survey, survey

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
        """The old lines."""
        return self.before.removesuffix("\n").split("\n")

    @cached_property
    def b(self) -> list[str]:
        """The new lines."""
        return self.after.removesuffix("\n").split("\n")

    @cached_property
    def spans(self) -> list[Span]:
        """What differs, without context."""
        return changes(self.a, self.b)

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
        """Whether lines somewhere are moved to another depth, and that is all."""
        return any(
            self._bare_a[span.a_start : span.a_end] == [line.strip() for line in self.b[span.b_start : span.b_end]]
            for span in self.spans
        )

    def is_deletion(self, span: Span) -> bool:
        """Tell whether the span takes away much more than it writes: such a hole is easily taken for an omission."""
        num_old, num_new = span.a_end - span.a_start, span.b_end - span.b_start
        return num_old > 2 * num_new + 2 or not any(line.strip() for line in self.b[span.b_start : span.b_end])

    def context(self, span: Span, num_lines: int) -> range | None:
        """Return the new lines to show for a span: it, and `num_lines` or more of those above and below.

        There are as many as it takes until there are words above and below, and one of the two stands once in the old
        text, or each of them where the span takes lines away: at an end of the file that would look like an omission.
        None where a dozen are not enough.
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

    def around(self, span: Span) -> list[Symbol]:
        """Return the definitions of the new text that hold the whole span, outermost first."""
        found = self.new_survey
        return [one for one in (found.symbols if found else ()) if _holds(one, span)]

    def _stands_once(self, part: Sequence[str]) -> bool:
        lines = self._bare_a
        starts = (at for at, line in enumerate(lines) if part and line == part[0])
        return any(part) and sum(lines[at : at + len(part)] == part for at in starts) == 1


def sayable(before: str, after: str, path: str) -> Change | None:
    r"""Return the change with "\n" line endings, None where no snippet can say it.

    That is one of the final newline, of blank lines at an end, or of spaces at line ends; or one of mixed line endings.
    """
    if _mixes_endings(before) or _mixes_endings(after) or not ends_alike(before, after):
        return None
    change = Change(before.replace("\r\n", "\n"), after.replace("\r\n", "\n"), path)
    return change if _can_be_seen(change) else None


def header(symbol: Symbol) -> range:
    """Return the lines of a definition above its body: decorators, name and parameters."""
    return range(symbol.first_line, max(symbol.first_line + 1, symbol.body_line or symbol.end_line))


def filled(shown: set[int], b: Sequence[str]) -> set[int]:
    """Return the lines shown and those between that nobody would write a marker for: a few, or blank ones."""
    more = set(shown)
    for gap in gaps(shown, len(b)):
        if len(gap) < _SMALL_GAP or not any(b[at].strip() for at in gap):
            more.update(gap)
    return more


def gaps(shown: set[int], num_lines: int) -> Iterator[range]:
    """Yield the runs of lines that are not shown."""
    start = 0
    for at in [*sorted(shown), num_lines]:
        if start < at:
            yield range(start, at)
        start = at + 1


def runs(shown: set[int]) -> Iterator[range]:
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
    """Tell whether every change shows: more than spaces at line ends, and no blank line at an end of the file."""
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
