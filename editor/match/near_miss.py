"""Finds the places most similar to lines that were not found, and chooses among places by hints.

A reading keeps the file's lines: only the difference of the old and new lines is applied at the place, as in a
three-way merge with the old lines as base.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from rapidfuzz import fuzz, process
from rapidfuzz.distance import Indel

from editor.diff import LineOp, count_common_prefix, line_opcodes
from editor.errors import format_span
from editor.match.ladder import BLANKS, IndentMapping, LineIndex, Shift, find_mapping, fold, get_indent, strip_blanks
from editor.splices import Option, Splice
from editor.types import Hint, Replacement

_NUM_PROBES = 6
_NUM_COMPARED = 8
_MIN_LIKENESS = 50.0
# A place found by equal lines alone is good enough from here on; below, all lines are searched.
_CLEAR_LIKENESS = 80.0
# Lines that occur more often than this say little about the place.
_MAX_COMMON = 20
_MAX_SLACK = 3
_MAX_SHOWN = 24
# Comparing by characters takes time by the product of the lengths: longer texts are compared by lines, cut short.
_MAX_CHARS = 20_000
_MAX_LINE_CHARS = 300


@dataclass(frozen=True, slots=True)
class NearMatch:
    """Lines [start, end) of the file, and their similarity to the lines looked for, in per cent."""

    start: int
    end: int
    likeness: float


def describe_nearest(lines: Sequence[str] | LineIndex, wanted: Sequence[str]) -> str:
    """Return 'lines 12-15 are nearest (87 % alike)' with a diff from the wanted lines to the found ones, or ''."""
    index = lines if isinstance(lines, LineIndex) else LineIndex(lines)
    places = find_nearest(index, wanted, 1)
    if not places or places[0].likeness < _MIN_LIKENESS:
        return ""
    return describe_place(index.lines, wanted, places[0])


def describe_place(lines: Sequence[str], wanted: Sequence[str], place: NearMatch) -> str:
    """Return one place with its line numbers, and a small diff."""
    found = lines[place.start : place.end]
    where = f"{format_span(place.start, place.end)} {'is' if len(found) == 1 else 'are'}"
    heading = f"{where} nearest ({int(place.likeness)} % alike; '-' was sent, '+' is in the file):"
    return "\n".join([heading, *render_small_diff(wanted, found, place.start)])


def find_nearest(index: LineIndex, wanted: Sequence[str], limit: int) -> list[NearMatch]:
    """Return up to `limit` places that do not overlap, the most similar first."""
    votes = _vote_by_equal_lines(index, wanted)
    near = _rank_places(index.lines, wanted, votes)
    if not near or near[0].likeness < _CLEAR_LIKENESS:
        votes.update(_vote_by_similar_lines(index, wanted))
        near = _rank_places(index.lines, wanted, votes)
    apart: list[NearMatch] = []
    for place in near:
        if all(place.end <= other.start or other.end <= place.start for other in apart):
            apart.append(place)
    return apart[:limit]


def render_small_diff(wanted: Sequence[str], found: Sequence[str], start: int) -> list[str]:
    """Return the lines of a diff that is short enough for a model; `start` is the place of `found`."""
    shown: list[str] = []
    for op in line_opcodes(wanted, found):
        sent, stands = wanted[op.a_start : op.a_end], found[op.b_start : op.b_end]
        if op.equal:
            shown += ("  " + _cut(line) for line in _abridge(sent))
            continue
        shown += ("- " + _cut(line) for line in sent)
        shown += ("+ " + _cut(line) for line in stands)
        if len(sent) == len(stands):
            named = (
                (at, _describe_difference(*pair))
                for at, pair in enumerate(zip(sent, stands, strict=True), start + op.b_start)
            )
            shown += (f"  (line {at + 1}: {name})" for at, name in named if name)
    return shown if len(shown) <= _MAX_SHOWN else [*shown[:_MAX_SHOWN], f"  ({len(shown) - _MAX_SHOWN} lines more)"]


def _describe_difference(sent: str, found: str) -> str:
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


def _vote_by_equal_lines(index: LineIndex, wanted: Sequence[str]) -> Counter[int]:
    """Return votes of equal lines for the place of the first line; rarer and longer lines have more weight."""
    votes: Counter[int] = Counter()
    places = index.key_by(strip_blanks).places
    for offset, line in enumerate(map(strip_blanks, wanted)):
        stands = places.get(line, ()) if line else ()
        if len(stands) <= _MAX_COMMON:
            for at in stands:
                votes[max(0, at - offset)] += 1 + min(len(line), _MAX_LINE_CHARS) * 10 // len(stands)
    return votes


def _vote_by_similar_lines(index: LineIndex, wanted: Sequence[str]) -> Counter[int]:
    """Return votes of lines that are similar to the longest wanted lines."""
    votes: Counter[int] = Counter()
    keys = [key[:_MAX_LINE_CHARS] for key in index.key_by(strip_blanks).keys]
    for probe in sorted(range(len(wanted)), key=lambda at: -len(wanted[at].strip()))[:_NUM_PROBES]:
        sought = strip_blanks(wanted[probe])[:_MAX_LINE_CHARS]
        for _, score, at in process.extract(sought, keys, scorer=fuzz.ratio, limit=5, score_cutoff=60):
            votes[max(0, at - probe)] += int(score)
    return votes


def _rank_places(lines: Sequence[str], wanted: Sequence[str], votes: Counter[int]) -> list[NearMatch]:
    near = [_find_best_end(lines, wanted, start) for start, _ in votes.most_common(_NUM_COMPARED)]
    return sorted((one for one in near if one is not None), key=lambda place: (-place.likeness, place.start))


def _find_best_end(lines: Sequence[str], wanted: Sequence[str], start: int) -> NearMatch | None:
    """Return the most similar place from `start` on, with its best end."""
    size = len(wanted)
    slack = min(_MAX_SLACK, size - 1)
    ends = range(start + size - slack, min(len(lines), start + size + slack) + 1)
    if not ends:
        return NearMatch(start, len(lines), _measure_likeness(wanted, lines[start:])) if start < len(lines) else None
    last = wanted[-1][:_MAX_LINE_CHARS]
    likeness = {end: _measure_likeness(wanted, lines[start:end]) for end in ends}
    ranks = {
        end: likeness[end] + fuzz.ratio(last, lines[end - 1][:_MAX_LINE_CHARS]) / 5 - abs(end - start - size)
        for end in ends
    }
    best = max(ends, key=lambda end: ranks[end])
    return NearMatch(start, best, likeness[best])


def _measure_likeness(wanted: Sequence[str], found: Sequence[str]) -> float:
    sought, stands = "\n".join(wanted), "\n".join(found)
    if len(sought) + len(stands) <= _MAX_CHARS:
        return fuzz.ratio(sought, stands)
    if len(wanted) == len(found) <= 50:
        each = [fuzz.ratio(a[:_MAX_LINE_CHARS], b[:_MAX_LINE_CHARS]) for a, b in zip(wanted, found, strict=True)]
        return sum(each) / len(each)
    return 100 * Indel.normalized_similarity(list(map(strip_blanks, wanted)), list(map(strip_blanks, found)))


def _abridge(lines: Sequence[str]) -> Sequence[str]:
    return lines if len(lines) <= 3 else [lines[0], f"({len(lines) - 2} equal lines)", lines[-1]]


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]} ({len(line) - _MAX_LINE_CHARS} more)"


_MIN_FUZZY_LIKENESS = 75.0
# Places that are less than this below the best one are as likely.
_MARGIN = 5.0
_MAX_PLACES = 3


def find_readings(index: LineIndex, change: Replacement) -> tuple[tuple[Option, ...], NearMatch | None]:
    """Return the likely readings of a change whose old lines are not found, and the nearest place, likely or not."""
    near = find_nearest(index, change.before, _MAX_PLACES)
    if not near or near[0].likeness < _MIN_FUZZY_LIKENESS:
        return (), near[0] if near else None
    options: list[Option] = []
    for place in near:
        if place.likeness >= max(_MIN_FUZZY_LIKENESS, near[0].likeness - _MARGIN):
            found = index.lines[place.start : place.end]
            splice = Splice(place.start, place.end, tuple(_carry_change(found, change)), "fuzzy")
            why = f"SEARCH taken at {splice.location}, {int(place.likeness)} % alike"
            if list(splice.lines) != list(found):
                options.append(Option(splice, place.likeness / 100, why))
    return tuple(options), near[0]


def _carry_change(found: Sequence[str], change: Replacement) -> list[str]:
    """Return the found lines with the changes from `before` to `after`; where both differ, `after` wins."""
    drift = line_opcodes([strip_blanks(line) for line in change.before], [strip_blanks(line) for line in found])
    shift = _find_shift(found, change.before, drift)
    carried: list[str] = []
    for op in line_opcodes(change.before, change.after):
        if op.equal:
            carried += found[_find_row(drift, op.a_start, len(found)) : _find_row(drift, op.a_end, len(found))]
            continue
        for line in change.after[op.b_start : op.b_end]:
            moved = shift.apply(line)
            carried.append(line if moved is None else moved)
    return carried


def _find_row(drift: Sequence[LineOp], row: int, num_found: int) -> int:
    """Return the line of the place that is aligned with a line of `before`."""
    for op in drift:
        if row < op.a_end:
            return min(op.b_end, op.b_start + max(0, row - op.a_start))
    return num_found


def _find_shift(found: Sequence[str], before: Sequence[str], drift: Sequence[LineOp]) -> IndentMapping:
    rows = [
        (found[op.b_start + i], before[op.a_start + i])
        for op in drift
        if op.equal
        for i in range(op.a_end - op.a_start)
        if before[op.a_start + i].strip()
    ]
    return find_mapping([line for line, _ in rows], [line for _, line in rows]) or Shift()


def choose_place(lines: Sequence[str], starts: Sequence[int], hint: Hint) -> int | None:
    """Return the index in `starts` of the place that the hint names, None if it names none or several."""
    if hint.line in starts:
        return starts.index(hint.line)
    if not hint.scopes:
        return None
    inside = [number for number, start in enumerate(starts) if _encloses(lines, hint.scopes, start)]
    return inside[0] if len(inside) == 1 else None


def sort_by_distance(starts: Sequence[int], hint: Hint, limit: int) -> list[int]:
    """Return the indices of some places, the nearest to the hinted line first; in text order without a hint."""
    line = hint.line
    if line is None:
        return list(range(min(limit, len(starts))))
    return nsmallest(limit, range(len(starts)), key=lambda number: abs(starts[number] - line))


def _encloses(lines: Sequence[str], scopes: Sequence[str], start: int) -> bool:
    """Return whether the scopes' lines are above a place, outermost first, each with deeper lines only below it."""
    at, depth = start, len(get_indent(next((line for line in lines[start:] if line.strip()), "")).expandtabs(8))
    for scope in reversed(scopes):
        while True:
            at -= 1
            if at < 0:
                return False
            own = len(get_indent(lines[at]).expandtabs(8))
            if not lines[at].strip() or own >= depth:
                continue
            depth = own
            if lines[at].strip() == scope.strip():
                break
    return True
