r"""Three-way merge by lines: brings the changes of two texts with a common base together (diff3).

Khanna, Kunal and Pierce, "A Formal Investigation of Diff3", FSTTCS 2007. As in git, changes of both sides conflict if
they overlap or touch, unless they are the same; one unchanged line between them is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from editor.diff import LineOp, count_common_ends, line_opcodes, ops_of_changes
from editor.errors import NOT_APPLICABLE, format_list
from editor.syntax import Survey, survey
from editor.types import Check

LABELS = ("the file now", "the base", "the edit")
"""What the conflict markers call the three sides."""

MARKER = 7
"""Characters of a conflict marker, as in git."""


class Conflict(NamedTuple):
    """Lines `[start, end)` of the current text, from 0, that both sides changed."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ThreeWayMerge:
    r"""A merged text with "\n" lines.

    conflicts: what both sides changed, in text order; there the text has all three versions between conflict markers,
    in git's style `zdiff3`. ops: from the lines of the current text to those of the merged text.
    """

    text: str
    conflicts: tuple[Conflict, ...]
    ops: tuple[LineOp, ...]


def merge_three_way(base: str, current: str, edited: str) -> ThreeWayMerge:
    r"""Merge the changes from `base` to `edited` into `current`; all texts have "\n" lines."""
    old, ours, theirs = (text.split("\n") for text in (base, current, edited))
    merged: list[str] = []
    changes: list[tuple[int, int, int]] = []
    conflicts: list[Conflict] = []
    at = 0  # the first line of `ours` that is not in `merged` yet
    for cluster in _find_clusters(line_opcodes(old, ours), line_opcodes(old, theirs)):
        was, now, new = old[cluster.base], ours[cluster.current], theirs[cluster.edited]
        if new in (was, now):
            continue
        start, end = cluster.current.start, cluster.current.stop
        if now != was:
            head, tail = count_common_ends(now, new)
            start, end = start + head, end - tail
            conflicts.append(Conflict(start, end))
            new = _render_conflict(now[head : len(now) - tail], was, new[head : len(new) - tail])
        merged += [*ours[at:start], *new]
        changes.append((start, end, len(new)))
        at = end
    merged += ours[at:]
    return ThreeWayMerge("\n".join(merged), tuple(conflicts), ops_of_changes(changes, len(ours)))


class _Cluster(NamedTuple):
    """The lines of the three texts that changes which touch have in common."""

    base: slice
    current: slice
    edited: slice


def _find_clusters(ours: Sequence[LineOp], theirs: Sequence[LineOp]) -> Iterator[_Cluster]:
    """Yield the changes of both sides in text order; those that touch are one cluster."""
    changes = sorted((op.a_start, op.a_end, side, op) for side in (0, 1) for op in (ours, theirs)[side] if not op.equal)
    shift = [0, 0]  # from a line of the base to the same line of each side
    first = 0
    while first < len(changes):
        start, end = changes[first][:2]
        last = first + 1
        while last < len(changes) and changes[last][0] <= end:
            end = max(end, changes[last][1])
            last += 1
        starts = [start + each for each in shift]
        for _, _, side, op in changes[first:last]:
            shift[side] += (op.b_end - op.b_start) - (op.a_end - op.a_start)
        current, edited = (slice(begin, end + each) for begin, each in zip(starts, shift, strict=True))
        yield _Cluster(slice(start, end), current, edited)
        first = last


def _render_conflict(now: Sequence[str], was: Sequence[str], new: Sequence[str]) -> list[str]:
    sides = [*zip("<|", LABELS, (now, was), strict=False)]
    lines = [line for sign, label, side in sides for line in (f"{sign * MARKER} {label}", *side)]
    return [*lines, "=" * MARKER, *new, f"{'>' * MARKER} {LABELS[2]}"]


def check_three_way(merged: str, current: str, edited: str, language: str | None) -> Check:
    """Check a merge without conflicts as a program: lines that fit as text may not fit together.

    It fails if the grammar finds more errors than in either side, or if a definition stands there twice of which each
    side has one.
    """
    name = "three_way"
    surveys = [survey(text, language) for text in (merged, current, edited)]
    known = [each for each in surveys if each is not None]
    if len(known) < len(surveys):
        return Check(name, True, f"{NOT_APPLICABLE}: no grammar for this text, or it is too large")
    result, *sides = known
    before = max(len(side.error_lines) for side in sides)
    if len(result.error_lines) > before:
        where = ", ".join(str(line + 1) for line in result.error_lines[:3])
        return Check(name, False, f"{len(result.error_lines)} syntax errors, {before} in a side; at lines {where}")
    twice = _count_definitions(result) - (_count_definitions(sides[0]) | _count_definitions(sides[1]))
    both = format_list("the file and the edit both add", sorted(twice))
    return Check(name, not twice, both or "the changes since the base and the edit's are all there")


def _count_definitions(parsed: Survey) -> Counter[str]:
    return Counter(symbol.name for symbol in parsed.symbols)
