"""Finds the regions of a file that an edit can touch; where that is not known, the whole file is the region.

The readings of an edit (the merge by rule, or the candidates) are whole texts, and tell where they differ from the
file. What each part of the edit quotes adds the places where the part may belong as well. A part that may belong to
several places makes one region of all of them, as it must be written once. Parts whose regions lie apart are asked for
apart, each with its own part of the edit, if every change can be told to be one part's.

New lines that no line of the file holds anywhere (a definition between two placeholders) may stand in any of many
places, and none of them is wrong: where the readings put them far from each other, the best one decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from editor.losses import MAX_REMOVED_SHARE
from editor.scope.dividing import divided
from editor.scope.growing import grown
from editor.scope.outline import outline
from editor.scope.parts import Part, parts_of
from editor.scope.splicing import cut, holds, joined, lines_of
from editor.scope.touching import Touched, touched
from editor.scope.types import Region, Scope, Span
from editor.syntax import Survey, survey
from editor.types import AlreadyApplied, Merged, MergeOutcome, ParsedEdit, Sketch

SMALL_FILE = 150
"""Lines. A shorter file is given whole."""
MAX_SHARE = 0.6
"""Of the file's lines: regions that hold more are the whole file."""
NEAR = 15
"""Lines. Regions that lie no further apart are one."""
MAX_REGIONS = 8
UNLIKELY = 0.01
"""Of the best reading's score: one with less may stand anywhere, and would have half of a long file given for nothing.
Measured on seven snippets with markers in 3,000 lines: three had 877 to 2,791 lines given, and 53 to 62 without it."""


@dataclass(slots=True)
class _Group:
    """Lines that are given together: what may be touched, that with its definition, that with margins; the parts."""

    touched: Span
    around: Span
    span: Span
    parts: frozenset[int]


def regions(text: str, edit: ParsedEdit, by_rule: MergeOutcome, language: str | None) -> Scope:
    r"""Return what of a text ("\n" lines) a model has to be given to make an edit; `by_rule` is the rules' outcome."""
    lines = lines_of(text)
    readings = _readings(by_rule, text, edit)
    found = None
    if len(lines) >= SMALL_FILE and not (isinstance(edit.changes, Sketch) and edit.changes.complete):
        seen = survey(text, language)
        parts = parts_of(lines, edit, language)
        certain = isinstance(by_rule, Merged | AlreadyApplied)
        groups = _apart(touched(lines, parts, readings, certain=certain), lines, seen)
        edits = divided(edit, [_with_context(group, parts) for group in groups])
        found = _regions(text, lines, edits, readings, groups) if edits else None
    if found is None:
        return whole_file(text, edit, by_rule)
    spans = [(region.first_line, region.end_line) for region in found]
    mentioned = "\n".join((*edit.added_lines, *edit.searched_lines))
    return Scope(found, outline(lines, seen, spans, mentioned), whole=False, num_lines=len(lines))


def whole_file(text: str, edit: ParsedEdit, by_rule: MergeOutcome) -> Scope:
    """Return the scope that leaves nothing out."""
    lines = lines_of(text)
    candidates = tuple(dict.fromkeys(joined(lines_of(reading)) for reading in _readings(by_rule, text, edit)))
    return Scope((Region(0, len(lines), joined(lines), candidates),), "", whole=True, num_lines=len(lines))


def _readings(by_rule: MergeOutcome, text: str, edit: ParsedEdit) -> list[str]:
    """Return the whole texts that may be the result, best first.

    Without those that are next to impossible beside the best one, and those that take a large file for the few lines of
    a snippet: no check lets them pass.
    """
    if isinstance(by_rule, Merged):
        return [by_rule.text]
    if isinstance(by_rule, AlreadyApplied):
        return [text]
    least = (1 - MAX_REMOVED_SHARE) * text.count("\n") if isinstance(edit.changes, Sketch) else 0
    enough = UNLIKELY * max((one.score for one in by_rule.candidates), default=0.0)
    return [one.text for one in by_rule.candidates if one.score >= enough and one.text.count("\n") >= least]


def _apart(touched: Sequence[Touched], lines: Sequence[str], seen: Survey | None) -> list[_Group]:
    """Return groups that lie apart from one another, in the order of the file."""
    groups = [_Group(span, *grown(span, lines, seen), numbers) for span, numbers in touched]
    while (near := _nearest(groups)) is not None:
        one, other = near
        span = min(one.touched[0], other.touched[0]), max(one.touched[1], other.touched[1])
        groups = [group for group in groups if group is not one and group is not other]
        groups.append(_Group(span, *grown(span, lines, seen), one.parts | other.parts))
    return sorted(groups, key=lambda group: group.span)


def _nearest(groups: Sequence[_Group]) -> tuple[_Group, _Group] | None:
    """Return two neighbours that are to be one: as they are near, or too many are left."""
    ordered = sorted(groups, key=lambda group: group.span)
    gaps = [(below.span[0] - above.span[1], at) for at, (above, below) in enumerate(pairwise(ordered))]
    if not gaps:
        return None
    gap, at = min(gaps)
    return (ordered[at], ordered[at + 1]) if gap <= NEAR or len(groups) > MAX_REGIONS else None


def _with_context(group: _Group, parts: Sequence[Part]) -> frozenset[int]:
    """Return the group's parts, and those that only show lines which stand inside of it."""
    first, end = group.span
    shown = (
        number
        for number, part in enumerate(parts)
        if part.is_context and all(first <= place[0] and place[1] <= end for place in part.places)
    )
    return group.parts.union(shown)


def _regions(
    text: str,
    lines: Sequence[str],
    edits: Sequence[ParsedEdit | None],
    readings: Sequence[str],
    groups: Sequence[_Group],
) -> tuple[Region, ...] | None:
    """Return the regions of groups; None where they are not worth it, or do not hold what the best reading changes."""
    if not groups or sum(end - first for first, end in (group.span for group in groups)) > MAX_SHARE * len(lines):
        return None
    bare = tuple(_region(lines, group, part) for group, part in zip(groups, edits, strict=True))
    if readings and not holds(text, readings[0], bare):
        return None
    cuts = [cut(text, reading, bare) for reading in readings if holds(text, reading, bare)]
    by_region = list(zip(*cuts, strict=True)) if cuts else [()] * len(bare)
    return tuple(
        replace(region, candidates=tuple(dict.fromkeys(texts))) for region, texts in zip(bare, by_region, strict=True)
    )


def _region(lines: Sequence[str], group: _Group, edit: ParsedEdit | None) -> Region:
    first, end = group.span
    above, below = group.around[0] - first, end - group.around[1]
    return Region(first, end, joined(lines[first:end]), (), edit, above, below)
