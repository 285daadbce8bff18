"""Make lazy snippets with one reading from the texts before and after an edit, in several styles.

style               what it looks like
bare_hunks          each change with some lines about it, and nothing that says where lines are left out
markers             `// ... existing code ...` wherever lines are left out
signatures          the headers of the classes and functions around each change, their bodies left out by markers
wrong_indentation   markers, and each block moved to column 0, or the whole snippet written with another unit
missing_markers     markers, but some of them (one at least) are not there
whole_definition    the whole function or class that holds each change

Everything is drawn from `random.Random` seeded with text, so a snippet is the same in every process.

How a snippet is to be read: shown lines that follow each other directly follow each other in the result, and all lines
that are new are shown. **A deletion** is what stood in the original between two lines that are shown side by side: the
line above and the line below are there, nothing and no marker between. Where lines are left out without a marker, such
a hole could as well be an omission, so `bare_hunks` says no deletions, and next to one `missing_markers` drops only the
marker at the beginning or end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.edit_formats import Span
from benchmarks.snippets.changes import (
    Change,
    Marker,
    convert_indent,
    dedent,
    fill_gaps,
    find_change,
    find_gaps,
    find_indent_unit,
    find_runs,
    get_indent,
    is_whole_levels,
    list_header_lines,
)
from editor.definitions import Symbol
from editor.placeholders import find_placeholders, holds_placeholder

_CLOSERS = ("}", ")", "]", "end", "</")
_MAX_DEFINITION = 150
_SHARE_MISSING = 0.5


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is shown, as line numbers of the new text, and which of the gaps between have no marker."""

    shown: set[int]
    unmarked: frozenset[int] = frozenset()


def make_snippet(before: str, after: str, path: str, style: str, seed: int) -> str | None:
    """Write the change as a lazy snippet of this style; None where that style cannot say it clearly.

    No style can say: a change of the final newline or of spaces at line ends; blank lines added at the very beginning
    or end; a change whose surroundings stand several times in the file; lines that look like a marker themselves. Line
    endings are written as "\\n"; a text that mixes them cannot be said. Raises KeyError for an unknown style.
    """
    make = _STYLES[style]
    change = find_change(before, after, path)
    if change is None:
        return None
    lines = make(change, Random(f"{style}\0{seed}\0{path}\0{before}\0{after}"))
    return None if lines is None else "\n".join(lines).strip("\n") + "\n"


def _plan_bare_hunks(change: Change, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((1, 2, 3)))
    if shown is None or _deletes(change):
        return None
    return _write(change, _Plan(shown, _find_all_gaps(shown, change.b)), rng, whole=False)


def _plan_markers(change: Change, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((1, 2, 3)))
    return None if shown is None else _write(change, _Plan(shown), rng, whole=False)


def _plan_signatures(change: Change, rng: Random) -> list[str] | None:
    shown = change.add_context(1)
    around = [symbol for span in change.spans for symbol in change.around(span) if symbol.body_line is not None]
    if shown is None or not around:
        return None
    for symbol in around:
        shown |= set(_find_frame(symbol, change.b))
    return _write(change, _Plan(fill_gaps(shown, change.b)), rng, whole=False)


def _plan_wrong_indentation(change: Change, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((1, 2, 3)))
    if shown is None or change.changes_only_indentation:
        return None
    marker = Marker(change.path, rng)
    ways = [_move_to_column_0, _change_unit]
    rng.shuffle(ways)
    right = {at: change.b[at] for at in shown}
    for way in ways:
        lines = way(change, shown, rng)
        if lines is not None and lines != right:
            return _lay_out(change, _Plan(shown), marker, lines, flat=way is _move_to_column_0)
    return None


def _plan_missing_markers(change: Change, rng: Random) -> list[str] | None:
    shown = change.add_context(rng.choice((1, 2, 3)))
    if shown is None:
        return None
    found = [gap.start for gap in find_gaps(shown, len(change.b))]
    if _deletes(change):
        found = [gap.start for gap in find_gaps(shown, len(change.b)) if gap.start == 0 or gap.stop == len(change.b)]
    if not found:
        return None
    missing = {start for start in found if rng.random() < _SHARE_MISSING} or {rng.choice(found)}
    return _write(change, _Plan(shown, frozenset(missing)), rng, whole=False)


def _plan_whole_definition(change: Change, rng: Random) -> list[str] | None:
    shown: set[int] = set()
    outside: list[Span] = []
    for span in change.spans:
        definition = _find_definition(change, span)
        if definition is None:
            outside.append(span)
        else:
            shown |= definition
    if not shown:
        return None
    for span in outside:
        context = change.context(span, 1)
        if context is None:
            return None
        shown |= set(context)
    shown = fill_gaps(shown, change.b)
    bare = not any(map(change.is_deletion, outside)) and rng.random() < 0.5
    return _write(change, _Plan(shown, _find_all_gaps(shown, change.b) if bare else frozenset()), rng, whole=True)


def _find_definition(change: Change, span: Span) -> set[int] | None:
    """Return the lines of the smallest definition about a span, which the old text has, too; None without one.

    Where its name stands several times, the lines that those around it begin and end with are among them.
    """
    old = change.old_survey
    known = Counter(one.name for one in old.symbols) if old else Counter()
    around = [one for one in change.around(span) if known[one.name]]
    if old is None or not around:
        return None
    own = around[-1]
    if own.end_line - own.first_line > _MAX_DEFINITION or known[own.name] > 1:
        return None
    lines = set(range(own.doc_line, own.end_line))
    if sum(one.simple_name == own.simple_name for one in old.symbols) > 1:
        for symbol in around[:-1]:
            lines |= set(_find_frame(symbol, change.b))
    return lines


def _find_frame(symbol: Symbol, b: Sequence[str]) -> list[int]:
    """Return the lines that a definition begins with, and the one that closes it."""
    last = symbol.end_line - 1
    is_as_deep = get_indent(b[last]) == get_indent(b[symbol.first_line])
    return [*list_header_lines(symbol), *([last] if is_as_deep and b[last].strip().startswith(_CLOSERS) else [])]


def _move_to_column_0(change: Change, shown: set[int], rng: Random) -> dict[int, str] | None:
    """Dedent each block, with an unchanged line in it that shows how far; None where one has no such line."""
    changed = {at for span in change.spans for at in range(span.b_start, span.b_end)}
    out: dict[int, str] = {}
    for block in find_runs(shown):
        if not any(change.b[at].strip() for at in block if at not in changed):
            return None
        out |= zip(block, dedent([change.b[at] for at in block]), strict=True)
    return out


def _change_unit(change: Change, shown: set[int], rng: Random) -> dict[int, str] | None:
    unit = find_indent_unit(change.b)
    if unit is None:
        return None
    new = [change.b[at] for span in change.spans for at in range(span.b_start, span.b_end)]
    if not all(is_whole_levels(line, unit) for line in new):
        return None
    other = rng.choice([one for one in ("  ", "    ", "\t") if one != unit])
    return {at: convert_indent(change.b[at], unit, other) for at in shown}


def _write(change: Change, plan: _Plan, rng: Random, *, whole: bool) -> list[str] | None:
    """Write the lines as they are; None where nothing is left out, unless that is what the style may do (`whole`)."""
    if len(plan.shown) == len(change.b) and not whole:
        return None
    return _lay_out(change, plan, Marker(change.path, rng), {at: change.b[at] for at in plan.shown}, flat=False)


def _lay_out(change: Change, plan: _Plan, marker: Marker, lines: Mapping[int, str], *, flat: bool) -> list[str] | None:
    """Put the shown lines in order, with a marker (at column 0 if `flat`) or a blank line for each gap."""
    if len(plan.shown) == len(change.b) and plan.unmarked:
        return None
    out: list[str] = []
    shown = [lines[at] for at in sorted(plan.shown)]
    if find_placeholders(shown) or any(map(holds_placeholder, shown)) or shown[0].lstrip().startswith(("```", "~~~")):
        return None
    at_gap = {gap.start: gap for gap in find_gaps(plan.shown, len(change.b))}
    at = 0
    while at < len(change.b):
        gap = at_gap.get(at)
        if gap is None:
            out.append(lines[at])
            at += 1
        else:
            out += [""] if gap.start in plan.unmarked else _render_gap(gap, change.b, marker, flat=flat)
            at = gap.stop
    return out


def _render_gap(gap: range, b: Sequence[str], marker: Marker, *, flat: bool) -> list[str]:
    """Return the marker of a gap, indented as its least indented line, with the blank lines at the gap's own ends."""
    indents = [get_indent(b[at]) for at in gap if b[at].strip()]
    above = [""] if not b[gap.start].strip() else []
    below = [""] if not b[gap.stop - 1].strip() else []
    return [*above, marker.line("" if flat else min(indents, key=len, default="")), *below]


def _find_all_gaps(shown: set[int], b: Sequence[str]) -> frozenset[int]:
    return frozenset(gap.start for gap in find_gaps(shown, len(b)))


def _deletes(change: Change) -> bool:
    return any(map(change.is_deletion, change.spans))


_STYLES: Mapping[str, Callable[[Change, Random], list[str] | None]] = {
    "bare_hunks": _plan_bare_hunks,
    "markers": _plan_markers,
    "signatures": _plan_signatures,
    "wrong_indentation": _plan_wrong_indentation,
    "missing_markers": _plan_missing_markers,
    "whole_definition": _plan_whole_definition,
}
STYLES: tuple[str, ...] = tuple(_STYLES)
