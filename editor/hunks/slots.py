"""Hunks with their possible places, and the scopes that they name.

The block of a scope line reaches to the next line that is indented no deeper and is no bracket, comment or text of a
literal over several lines. A scope line that opens no block (a heading of Markdown) reaches to the end of the file.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile
from typing import Literal

from editor.match.file_style import adapt_to_file, find_literal_lines
from editor.match.ladder import IndentMapping, LineIndex, Places, find_places, measure_width, strip_blanks
from editor.splices import Splice
from editor.types import Replacement, Rung, Unresolved

Rule = Literal["unique", "hint", "scope", "order"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A hunk with all places of its old lines, or of its new lines if it is `done` already.

    `chosen` is one of `starts`, as soon as a `rule` has decided. The first `lead` and last `trail` lines are context.
    `proven` says that context or the line number confirm that the hunk is done. `told` is a sentence that the new lines
    of a hunk that does not match exactly are in the file; `is_twin` says that its places may only be similar to the one
    that is meant.
    """

    number: int
    change: Replacement
    starts: tuple[int, ...]
    rung: Rung
    mappings: tuple[IndentMapping, ...]
    lead: int
    trail: int
    done: bool = False
    chosen: int | None = None
    rule: Rule | None = None
    proven: bool = False
    told: str = ""
    is_twin: bool = False

    @property
    def size(self) -> int:
        """The number of its lines in the file."""
        return len(self.change.after if self.done else self.change.before)

    @property
    def line(self) -> int | None:
        """The line index that the hunk gives, None if it gives none."""
        return self.change.hint.line

    @property
    def context(self) -> tuple[int, int]:
        """The number of context lines above and below; repeated lines may count on both sides."""
        before, after = self.change.before, self.change.after
        return count_common(before, after), count_common(before[::-1], after[::-1])

    @property
    def new_lines(self) -> tuple[str, ...]:
        """The new lines without context."""
        return self.strip_context(self.change.after)

    def strip_context(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """Return new lines without the context above and below; they may be spelled as in the file."""
        return after[self.lead : len(after) - self.trail]

    def find_core(self, start: int) -> tuple[int, int]:
        """Return the range of lines at a place that are not context."""
        return start + self.lead, start + self.size - self.trail

    def can_start_at(self, start: int) -> bool:
        """Return whether a line is one of the slot's places."""
        row = bisect_left(self.starts, start)
        return row < len(self.starts) and self.starts[row] == start

    def choose(self, start: int, rule: Rule) -> Slot:
        """Return the slot with a chosen place."""
        return replace(self, chosen=start, rule=rule)

    def limit_to(self, low: int, high: int) -> Slot:
        """Return the slot with only its places in [low, high], none of them chosen."""
        kept = slice(bisect_left(self.starts, low), bisect_right(self.starts, high))
        if kept == slice(0, len(self.starts)):
            return replace(self, chosen=None, rule=None)
        return replace(self, starts=self.starts[kept], mappings=self.mappings[kept], chosen=None, rule=None)

    def restrict_to(self, starts: Collection[int]) -> Slot:
        """Return the slot with only these places, none of them chosen."""
        kept = [bisect_left(self.starts, start) for start in sorted(starts)]
        mappings = tuple(self.mappings[row] for row in kept)
        return replace(self, starts=tuple(sorted(starts)), mappings=mappings, chosen=None, rule=None)


def build_slot(number: int, change: Replacement, places: Places, *, done: bool = False) -> Slot:
    """Return the slot of a hunk; a line that could be context above and below is context above."""
    lead = count_common(change.before, change.after)
    most = min(len(change.before), len(change.after)) - lead
    trail = min(count_common(change.before[::-1], change.after[::-1]), most)
    return Slot(number, change, places.starts, places.rung, places.shifts, lead, trail, done)


def count_common(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the common prefix of two runs of lines."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


_PARAMETERS = re.compile(r"(?P<head>[^()]*\w\()\s*(?:\.{3}|…)?\s*\)\W*")
# Lines at the indentation of the scope line that do not end its block.
_CONTINUES = re.compile(r"[{})\]#/*;,]")


class Scopes:
    """Finds which lines of a file are inside given scopes."""

    def __init__(self, index: LineIndex) -> None:
        self._index = index
        self._lines_of: dict[str, tuple[int, ...]] = {}
        self._end_of: dict[int, int] = {}
        self._literals: frozenset[int] | None = None
        self._by_text: list[int] = []
        self._ranges_of: dict[tuple[str, ...], tuple[list[int], list[int]]] = {}

    def has_all(self, scopes: tuple[str, ...]) -> bool:
        """Return whether every scope is a line of the file."""
        return all(self._find_scope_lines(scope) for scope in scopes)

    def contain(self, scopes: tuple[str, ...], start: int, end: int) -> bool:
        """Return whether lines [start, end) are inside all scopes, outermost first, or contain the scope lines."""
        opened, limits = self._find_ranges(scopes)
        above = bisect_left(opened, end)
        return above > 0 and start < limits[above - 1]

    def _find_ranges(self, scopes: tuple[str, ...]) -> tuple[list[int], list[int]]:
        """Return where the innermost scope opens inside of the others, and where its range and all before it end."""
        if scopes not in self._ranges_of:
            opened, limits = [-1], [len(self._index.lines)]
            for scope in scopes:
                inner: tuple[list[int], list[int]] = ([], [])
                for at in self._find_scope_lines(scope):
                    around = bisect_left(opened, at)
                    if around and at < limits[around - 1]:
                        inner[0].append(at)
                        limit = min(self._get_end(at), limits[around - 1])
                        inner[1].append(max(limit, inner[1][-1]) if inner[1] else limit)
                opened, limits = inner
            self._ranges_of[scopes] = opened, limits
        return self._ranges_of[scopes]

    def _find_scope_lines(self, scope: str) -> tuple[int, ...]:
        """Return the lines equal to a scope without blanks at the ends; else those that begin with it (`class A(B):`).

        Models leave out parameters: if no line begins with it, `def f()` is also `def f(a, b):`.
        """
        known = self._lines_of.get(scope)
        if known is None:
            keyed, sought = self._index.key_by(strip_blanks), strip_blanks(scope)
            known = tuple(keyed.places.get(sought, ()))
            if not known and sought:
                known = self._find_by_prefix(sought)
            if not known and (elided := _PARAMETERS.fullmatch(sought)) is not None:
                known = tuple(at for at, key in enumerate(keyed.keys) if key.startswith(elided["head"]))
            self._lines_of[scope] = known
        return known

    def _find_by_prefix(self, sought: str) -> tuple[int, ...]:
        keys = self._index.key_by(strip_blanks).keys
        if not self._by_text:
            self._by_text = sorted(range(len(keys)), key=keys.__getitem__)
        longer = re.compile(re.escape(sought) + (r"(?!\w)" if re.match(r"\w", sought[-1]) else ""))
        first = bisect_left(self._by_text, sought, key=keys.__getitem__)
        alike = takewhile(lambda at: keys[at].startswith(sought), islice(self._by_text, first, None))
        return tuple(sorted(at for at in alike if longer.match(keys[at])))

    def _get_end(self, at: int) -> int:
        """Return the line after the block that line `at` opens."""
        if at not in self._end_of:
            self._end_of[at] = self._find_end(at)
        return self._end_of[at]

    @property
    def _literal_lines(self) -> frozenset[int]:
        if self._literals is None:
            self._literals = find_literal_lines(self._index.lines, docstrings=True)
        return self._literals

    def _find_end(self, at: int) -> int:
        lines = self._index.lines
        width = measure_width(lines[at])
        opened = False
        for below in range(at + 1, len(lines)):
            text = lines[below].strip()
            if not text or below in self._literal_lines:
                continue
            deeper = measure_width(lines[below]) - width
            if deeper > 0:
                opened = True
            elif deeper < 0 or not _CONTINUES.match(text):
                return below if opened else len(lines)
        return len(lines)


class Target:
    """A text to which hunks are applied; the places of each run of lines are searched only once."""

    def __init__(self, original: str, language: str | None = None) -> None:
        lines = original.split("\n")
        self.has_final_newline = lines[-1] == ""
        if self.has_final_newline:
            lines.pop()
        self.original = original
        self.lines = lines
        self.index = LineIndex(lines, language)
        self.scopes = Scopes(self.index)
        self._found: dict[tuple[str, ...], Places | None] = {}

    @property
    def blank_below(self) -> int:
        """The line from which on all lines are blank."""
        end = len(self.lines)
        while end and not self.lines[end - 1].strip():
            end -= 1
        return end

    def find(self, wanted: tuple[str, ...]) -> Places | None:
        """Return all places on the strictest rung that finds the lines; at least one of the lines must not be blank."""
        if wanted not in self._found:
            self._found[wanted] = find_places(self.index, wanted)
        return self._found[wanted]


def build_splice(target: Target, slot: Slot, start: int) -> tuple[Splice | None, str]:
    """Return the splice of a hunk at one of its places, and a doubt about it; None if its lines cannot be written.

    Context is left out, as hunks may share lines of it.
    """
    found = target.lines[start : start + slot.size]
    if slot.done:
        return Splice(start, start + slot.size, tuple(found), slot.rung, done=True), ""
    first, last = slot.find_core(start)
    if slot.rung == "exact":
        return Splice(first, last, slot.new_lines, slot.rung), ""
    mapping = slot.mappings[bisect_left(slot.starts, start)]
    held, yaml = slot.line == start, target.index.language == "yaml"
    written = adapt_to_file(slot.change, found, mapping, slot.rung, held=held, yaml=yaml)
    if written is None:
        return None, "for the indentation, and the new lines cannot be moved to it"
    return Splice(first, last, slot.strip_context(written.lines), slot.rung), written.doubt


def refuse_clash(splices: Sequence[Splice]) -> Unresolved | None:
    """Return the refusal of hunks that change the same lines or insert at the same point; None if none do."""
    ordered = sorted((one for one in splices if not one.done), key=lambda one: (one.start, one.end))
    for above, below in pairwise(ordered):
        if below.start < above.end or (above.start, above.end) == (below.start, below.end):
            return Unresolved(
                "open_intent",
                f"Two hunks change the same lines: {above.location} and {below.location}.",
                num_candidates=2,
                suggestion="Join the two hunks into one.",
            )
    return None
