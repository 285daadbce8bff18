"""Finds the regions of a file that an edit can change, and the part of the edit for each region.

The readings of an edit (the merge by rule, or the candidates) are whole texts, so their differences from the file show
what may change. The lines that a part of the edit quotes add the places where it may belong. A part with several
possible places makes one region of all of them, as it must be written once. Parts whose regions are apart are separate
questions, each with its own part of the edit, if every change belongs to one part.

New lines without any equal line in the file (a definition between two placeholders) may belong in many places, and none
is wrong. If the readings put them far from each other, the best one decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

from editor.checks import MAX_REMOVED_SHARE
from editor.definitions import Symbol
from editor.diff import line_opcodes
from editor.errors import format_span
from editor.required_lines import iter_solid_lines
from editor.scope import Region, Scope, Span, cut, is_confined, join_lines, split_lines
from editor.scope.parts import Change, Part, compute_hull, find_parts
from editor.snippets import get_block_indent
from editor.syntax import Survey, survey
from editor.types import AlreadyApplied, Check, Merged, MergeOutcome, ParsedEdit, Sketch, Substitutions

MAX_DEFINITION = 120
"""Lines. Of a longer definition a window around the touched lines is enough."""
WINDOW = 20
"""Lines on each side of the touched lines, if no definition of fitting length contains them."""
MAX_NEIGHBOUR = 10
"""Lines. A definition next to a region is its margin as a whole, a longer one not at all: a model tends to continue a
region that ends in the middle of a definition."""
SOLID_MARGIN = 2
MAX_MARGIN = 6
"""Next to other code the margin is `SOLID_MARGIN` lines that are not blank, within `MAX_MARGIN` lines."""


def grow_span(span: Span, lines: Sequence[str], seen: Survey | None) -> tuple[Span, Span]:
    """Return the definition around a span, without and with margins; a window if there is none or it is too long."""
    symbols = seen.symbols if seen is not None else ()
    first, end = _find_definition_span(span, lines, symbols)
    return (first, end), (_find_margin_above(lines, symbols, first), _find_margin_below(lines, symbols, end))


def _find_definition_span(span: Span, lines: Sequence[str], symbols: Sequence[Symbol]) -> Span:
    first, end = _strip_blank_lines(span, lines)
    longest = max(MAX_DEFINITION, end - first)
    fitting = [one for one in symbols if _contains(one, (first, end)) and one.end_line - one.doc_line <= longest]
    if fitting:
        inner = min(fitting, key=lambda one: one.end_line - one.doc_line)
        return min(span[0], inner.doc_line), max(span[1], inner.end_line)
    window = max(0, span[0] - WINDOW), min(len(lines), span[1] + WINDOW)
    starts = [one.doc_line for one in symbols if window[0] <= one.doc_line <= span[0] - WINDOW // 2]
    ends = [one.end_line for one in symbols if span[1] + WINDOW // 2 <= one.end_line <= window[1]]
    return min(starts, default=window[0]), max(ends, default=window[1])


def _strip_blank_lines(span: Span, lines: Sequence[str]) -> Span:
    solid = [at for at in range(*span) if lines[at].strip()]
    return (solid[0], solid[-1] + 1) if solid else span


def _contains(symbol: Symbol, span: Span) -> bool:
    """Return whether a span is in a definition; new lines exactly at its border may as well belong outside."""
    if span[0] == span[1]:
        return symbol.doc_line < span[0] < symbol.end_line
    return symbol.doc_line <= span[0] and span[1] <= symbol.end_line


def _find_margin_above(lines: Sequence[str], symbols: Sequence[Symbol], first: int) -> int:
    """Return where the margin above a region begins."""
    end = first
    while end and not lines[end - 1].strip():
        end -= 1
    starts = [one.doc_line for one in symbols if one.end_line == end]
    if starts:
        whole = [start for start in starts if end - start <= MAX_NEIGHBOUR]
        return min(whole, default=first)
    return _walk_margin(lines, first, -1)


def _find_margin_below(lines: Sequence[str], symbols: Sequence[Symbol], end: int) -> int:
    """Return where the margin below a region ends."""
    first = end
    while first < len(lines) and not lines[first].strip():
        first += 1
    ends = [one.end_line for one in symbols if one.doc_line == first]
    if ends:
        whole = [end_line for end_line in ends if end_line - first <= MAX_NEIGHBOUR]
        return max(whole, default=end)
    return _walk_margin(lines, end - 1, 1) + 1


def _walk_margin(lines: Sequence[str], at: int, step: int) -> int:
    """Return the last line of the margin, walking outwards from `at`."""
    num_solid = 0
    for _ in range(MAX_MARGIN):
        if num_solid == SOLID_MARGIN or not 0 <= at + step < len(lines):
            break
        at += step
        num_solid += bool(lines[at].strip())
    return at


Touched = tuple[Span, frozenset[int]]
"""Lines that may be touched, and the numbers of the parts that may touch them."""


def find_touched_spans(
    lines: Sequence[str], parts: Sequence[Part], readings: Sequence[str], *, certain: bool
) -> list[Touched]:
    """Return the lines that each part may touch, one hull for all if a change fits no single part; [] if unknown.

    `certain` says that the one reading is the result, or that the file stays as it is.
    """
    told = [assign_change(change, parts) for change in _list_changes(lines, readings)]
    spans = [part.find_touched(certain=certain) for part in parts]
    if not readings and not all(part.is_sure for part in parts):
        return []
    if not certain and any(span is None and not part.is_context for span, part in zip(spans, parts, strict=True)):
        return []
    known = [(span, frozenset([number])) for number, span in enumerate(spans) if span is not None]
    if known and all(told):
        return known
    if not known and not certain:
        return []
    # If nothing is to change, the place of the edit's lines is what one would look at.
    around = compute_hull([span for span, _ in known] or [place for part in parts for place in part.places])
    return [(around, frozenset(range(len(parts))))] if around is not None else []


def _list_changes(lines: Sequence[str], readings: Sequence[str]) -> Iterator[Change]:
    for number, reading in enumerate(readings):
        new = split_lines(reading)
        for op in line_opcodes(lines, new):
            if not op.equal:
                yield Change(number, (op.a_start, op.a_end), frozenset(iter_solid_lines(new[op.b_start : op.b_end])))


def assign_change(change: Change, parts: Sequence[Part]) -> bool:
    """Add a change to the parts that it may belong to; False if its place and its lines point to different parts."""
    if len(parts) == 1:
        parts[0].changes.append(change)
        return True
    reaching = [part for part in parts if part.has_place_of(change)]
    bringing = [part for part in parts if part.has_lines_of(change)]
    both = [part for part in reaching if part in bringing]
    owners = both or reaching or bringing or parts
    for part in owners:
        part.changes.append(change)
    if both or not reaching:
        return bool(both) or len(bringing) == 1
    return not bringing


def divide_edit(edit: ParsedEdit, groups: Sequence[Set[int]]) -> list[ParsedEdit | None] | None:
    """Return the edit of each group of parts, None for the whole edit as sent; None if it cannot be divided.

    A part without a group changes nothing and is left out. A snippet for one region of its file leaves out the rest of
    the file, so it gets markers at both ends.
    """
    if isinstance(edit.changes, Sketch):
        return [_divide_sketch(edit, edit.changes, numbers, len(groups)) for numbers in groups]
    if len(groups) == 1:
        return [None]
    if isinstance(edit.changes, Substitutions):
        items = edit.changes.items
        return [replace(edit, changes=Substitutions(tuple(items[at] for at in sorted(some)))) for some in groups]
    changes = edit.changes
    if any(change.hint.pinned or not any(map(str.strip, change.before)) for change in changes):
        return None  # without the old lines nothing of a part says where in its region it belongs
    return [replace(edit, changes=tuple(changes[at] for at in sorted(some))) for some in groups]


def _divide_sketch(edit: ParsedEdit, sketch: Sketch, numbers: Set[int], num_groups: int) -> ParsedEdit | None:
    if num_groups == 1 and sketch.elides:
        return None
    kept = sorted(numbers)
    indents = _list_marker_indents(sketch)
    part = replace(
        sketch,
        blocks=tuple(sketch.blocks[at] for at in kept),
        opens_elided=True,
        closes_elided=True,
        marker_indents=(*(indents[at] for at in kept), indents[kept[-1] + 1]),
    )
    return replace(edit, changes=part)


def _list_marker_indents(sketch: Sketch) -> list[tuple[str, ...]]:
    """Return the indentations of the markers above each block and below the last."""
    given = list(sketch.marker_indents)
    if not given:
        return [(get_block_indent(block),) for block in (*sketch.blocks, sketch.blocks[-1])]
    above = [] if sketch.opens_elided else [(get_block_indent(sketch.blocks[0]),)]
    below = [] if sketch.closes_elided else [(get_block_indent(sketch.blocks[-1]),)]
    return [*above, *given, *below]


def check_region_kept(regions: Sequence[Region], answers: Sequence[str]) -> Check:
    """Check that every answer begins and ends with the lines at the ends of its region.

    An answer without them, or with other lines there, is not the region: it may be the whole file, or only the edit.
    """
    lost = [region for region, answer in zip(regions, answers, strict=True) if not _has_margins_kept(region, answer)]
    where = ", ".join(format_span(region.first_line, region.end_line) for region in lost)
    detail = f"the model changed lines beside those that the edit can touch, in {where}" if lost else "all kept"
    return Check("region_kept", not lost, detail)


def _has_margins_kept(region: Region, answer: str) -> bool:
    stood, stands = split_lines(region.text), split_lines(answer)
    above, below = region.num_above, region.num_below
    if len(stands) < above + below:
        return False
    return stands[:above] == stood[:above] and (not below or stands[-below:] == stood[-below:])


MAX_LINES = 16
MAX_LINE_CHARS = 120

_WORD = re.compile(r"\w+")
_PLAIN = frozenset({"key", "column", "element", "rule", "property"})
"""Kinds whose names tell a model nothing; they are shown only around a region."""


def render_outline(lines: Sequence[str], seen: Survey | None, spans: Sequence[Span], mentioned: str) -> str:
    """Return the first lines of up to `MAX_LINES` definitions in the order of the file, "" without a grammar.

    Definitions around a region come first, then those that `mentioned` (the edit's lines) names, then the outermost and
    nearest.
    """
    if seen is None:
        return ""
    symbols = seen.symbols
    around = set(_find_ancestors(symbols, spans))
    words = set(_WORD.findall(mentioned))
    outside = [at for at, one in enumerate(symbols) if not _is_inside(one.name_line, spans)]
    shown = [at for at in outside if at in around or symbols[at].kind not in _PLAIN]

    def rank(at: int) -> tuple[bool, bool, int, int]:
        one = symbols[at]
        return at not in around, one.simple_name not in words, one.depth, _measure_distance(one, spans)

    shown.sort(key=rank)
    rows = sorted({symbols[at].name_line for at in shown[:MAX_LINES]})
    return "\n".join(lines[row].rstrip()[:MAX_LINE_CHARS] for row in rows)


def _find_ancestors(symbols: Sequence[Symbol], spans: Sequence[Span]) -> Iterable[int]:
    for at, one in enumerate(symbols):
        if any(one.first_line < first and end <= one.end_line for first, end in spans):
            yield at


def _is_inside(line: int, spans: Sequence[Span]) -> bool:
    return any(first <= line < end for first, end in spans)


def _measure_distance(symbol: Symbol, spans: Sequence[Span]) -> int:
    return min(max(first - symbol.name_line, symbol.name_line - end, 0) for first, end in spans)


SMALL_FILE = 150
"""Lines. A shorter file is one region."""
MAX_SHARE = 0.6
"""The share of the file's lines above which the whole file is given instead of regions."""
NEAR = 15
"""Lines. Regions at most so far apart are joined."""
MAX_REGIONS = 8
UNLIKELY = 0.01
"""Readings with less than this share of the best score are ignored: they may be anywhere, and half of a long file would
be given for nothing. Measured on seven snippets with markers in 3,000 lines: three had 877 to 2,791 lines given without
this bound, and 53 to 62 with it."""


@dataclass(slots=True)
class _Group:
    """Lines that are given together: the touched lines, with their definition, with margins; and the parts."""

    touched: Span
    around: Span
    span: Span
    parts: frozenset[int]


def find_regions(text: str, edit: ParsedEdit, by_rule: MergeOutcome, language: str | None) -> Scope:
    r"""Return the regions of a text ("\n" lines) that a model needs for an edit; `by_rule` is the rules' outcome."""
    lines = split_lines(text)
    readings = _list_readings(by_rule, text, edit)
    found = None
    if len(lines) >= SMALL_FILE and not (isinstance(edit.changes, Sketch) and edit.changes.complete):
        seen = survey(text, language)
        parts = find_parts(lines, edit, language)
        certain = isinstance(by_rule, Merged | AlreadyApplied)
        groups = _group_spans(find_touched_spans(lines, parts, readings, certain=certain), lines, seen)
        edits = divide_edit(edit, [_add_context_parts(group, parts) for group in groups])
        found = _build_regions(text, lines, edits, readings, groups) if edits else None
    if found is None:
        return build_whole_scope(text, edit, by_rule)
    spans = [(region.first_line, region.end_line) for region in found]
    mentioned = "\n".join((*edit.new_lines, *edit.old_lines))
    return Scope(found, render_outline(lines, seen, spans, mentioned), whole=False, num_lines=len(lines))


def build_whole_scope(text: str, edit: ParsedEdit, by_rule: MergeOutcome) -> Scope:
    """Return the scope of the whole file."""
    lines = split_lines(text)
    candidates = tuple(
        dict.fromkeys(join_lines(split_lines(reading)) for reading in _list_readings(by_rule, text, edit))
    )
    return Scope((Region(0, len(lines), join_lines(lines), candidates),), "", whole=True, num_lines=len(lines))


def _list_readings(by_rule: MergeOutcome, text: str, edit: ParsedEdit) -> list[str]:
    """Return the whole texts that may be the result, best first.

    Left out are readings that are nearly impossible beside the best one, and readings that shrink a large file to the
    few lines of a snippet, which no check accepts.
    """
    if isinstance(by_rule, Merged):
        return [by_rule.text]
    if isinstance(by_rule, AlreadyApplied):
        return [text]
    least = (1 - MAX_REMOVED_SHARE) * text.count("\n") if isinstance(edit.changes, Sketch) else 0
    enough = UNLIKELY * max((one.score for one in by_rule.candidates), default=0.0)
    return [one.text for one in by_rule.candidates if one.score >= enough and one.text.count("\n") >= least]


def _group_spans(touched: Sequence[Touched], lines: Sequence[str], seen: Survey | None) -> list[_Group]:
    """Return groups that are apart from one another, in the order of the file."""
    groups = [_Group(span, *grow_span(span, lines, seen), numbers) for span, numbers in touched]
    while (near := _find_nearest_groups(groups)) is not None:
        one, other = near
        span = min(one.touched[0], other.touched[0]), max(one.touched[1], other.touched[1])
        groups = [group for group in groups if group is not one and group is not other]
        groups.append(_Group(span, *grow_span(span, lines, seen), one.parts | other.parts))
    return sorted(groups, key=lambda group: group.span)


def _find_nearest_groups(groups: Sequence[_Group]) -> tuple[_Group, _Group] | None:
    """Return two neighbours to join because they are near or there are too many groups, else None."""
    ordered = sorted(groups, key=lambda group: group.span)
    gaps = [(below.span[0] - above.span[1], at) for at, (above, below) in enumerate(pairwise(ordered))]
    if not gaps:
        return None
    gap, at = min(gaps)
    return (ordered[at], ordered[at + 1]) if gap <= NEAR or len(groups) > MAX_REGIONS else None


def _add_context_parts(group: _Group, parts: Sequence[Part]) -> frozenset[int]:
    """Return the group's parts, and the parts that only show unchanged lines inside of it."""
    first, end = group.span
    shown = (
        number
        for number, part in enumerate(parts)
        if part.is_context and all(first <= place[0] and place[1] <= end for place in part.places)
    )
    return group.parts.union(shown)


def _build_regions(
    text: str,
    lines: Sequence[str],
    edits: Sequence[ParsedEdit | None],
    readings: Sequence[str],
    groups: Sequence[_Group],
) -> tuple[Region, ...] | None:
    """Return the regions of groups; None if they are too large, or if the best reading changes other lines too."""
    if not groups or sum(end - first for first, end in (group.span for group in groups)) > MAX_SHARE * len(lines):
        return None
    bare = tuple(_build_region(lines, group, part) for group, part in zip(groups, edits, strict=True))
    if readings and not is_confined(text, readings[0], bare):
        return None
    cuts = [cut(text, reading, bare) for reading in readings if is_confined(text, reading, bare)]
    by_region = list(zip(*cuts, strict=True)) if cuts else [()] * len(bare)
    return tuple(
        replace(region, candidates=tuple(dict.fromkeys(texts))) for region, texts in zip(bare, by_region, strict=True)
    )


def _build_region(lines: Sequence[str], group: _Group, edit: ParsedEdit | None) -> Region:
    first, end = group.span
    above, below = group.around[0] - first, end - group.around[1]
    return Region(first, end, join_lines(lines[first:end]), (), edit, above, below)
