"""The nearest miss: the places in a file that are most like lines that were not found, shown as a small diff."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz, process
from rapidfuzz.distance import Indel

from editor.alignment import line_opcodes
from editor.matching.folding import difference
from editor.matching.index import LineIndex, stripped
from editor.wording import span_of

_NUM_PROBES = 6
_NUM_COMPARED = 8
_MIN_LIKENESS = 50.0
# A place found by its equal lines alone is good enough from here on; below, all lines are looked through.
_CLEAR_LIKENESS = 80.0
# Lines that stand more often than this say little about the place.
_MAX_COMMON = 20
_MAX_SLACK = 3
_MAX_SHOWN = 24
# Likeness by characters takes time by the product of the lengths: longer texts are compared line by line, cut lines.
_MAX_CHARS = 20_000
_MAX_LINE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Near:
    """Lines [start, end) of the file, and how much they are like the lines looked for, in per cent."""

    start: int
    end: int
    likeness: float


def nearest_miss(lines: Sequence[str] | LineIndex, wanted: Sequence[str]) -> str:
    """Return 'lines 12-15 are nearest (87 % alike)' with a diff from what was wanted to what stands there, or ''."""
    index = lines if isinstance(lines, LineIndex) else LineIndex(lines)
    places = nearest_places(index, wanted, 1)
    if not places or places[0].likeness < _MIN_LIKENESS:
        return ""
    return shown(index.lines, wanted, places[0])


def shown(lines: Sequence[str], wanted: Sequence[str], place: Near) -> str:
    """Return one place with its line numbers, and a small diff."""
    found = lines[place.start : place.end]
    where = f"{span_of(place.start, place.end)} {'is' if len(found) == 1 else 'are'}"
    heading = f"{where} nearest ({int(place.likeness)} % alike; '-' was sent, '+' is in the file):"
    return "\n".join([heading, *small_diff(wanted, found, place.start)])


def nearest_places(index: LineIndex, wanted: Sequence[str], limit: int) -> list[Near]:
    """Return up to `limit` places that do not overlap, the most alike first."""
    votes = _votes_by_equal_lines(index, wanted)
    near = _compared(index.lines, wanted, votes)
    if not near or near[0].likeness < _CLEAR_LIKENESS:
        votes.update(_votes_by_like_lines(index, wanted))
        near = _compared(index.lines, wanted, votes)
    apart: list[Near] = []
    for place in near:
        if all(place.end <= other.start or other.end <= place.start for other in apart):
            apart.append(place)
    return apart[:limit]


def small_diff(wanted: Sequence[str], found: Sequence[str], start: int) -> list[str]:
    """Return the lines of a diff short enough to be handed to a model; `start` is where `found` stands."""
    shown: list[str] = []
    for op in line_opcodes(wanted, found):
        sent, stands = wanted[op.a_start : op.a_end], found[op.b_start : op.b_end]
        if op.equal:
            shown += ("  " + _cut(line) for line in _abridged(sent))
            continue
        shown += ("- " + _cut(line) for line in sent)
        shown += ("+ " + _cut(line) for line in stands)
        if len(sent) == len(stands):
            named = (
                (at, difference(*pair)) for at, pair in enumerate(zip(sent, stands, strict=True), start + op.b_start)
            )
            shown += (f"  (line {at + 1}: {name})" for at, name in named if name)
    return shown if len(shown) <= _MAX_SHOWN else [*shown[:_MAX_SHOWN], f"  ({len(shown) - _MAX_SHOWN} lines more)"]


def _votes_by_equal_lines(index: LineIndex, wanted: Sequence[str]) -> Counter[int]:
    """Let lines that stand in the file say where the first line should be; the rarer and longer, the louder."""
    votes: Counter[int] = Counter()
    places = index.by(stripped).places
    for offset, line in enumerate(map(stripped, wanted)):
        stands = places.get(line, ()) if line else ()
        if len(stands) <= _MAX_COMMON:
            for at in stands:
                votes[max(0, at - offset)] += 1 + min(len(line), _MAX_LINE_CHARS) * 10 // len(stands)
    return votes


def _votes_by_like_lines(index: LineIndex, wanted: Sequence[str]) -> Counter[int]:
    """Let the longest lines look for lines that are much like them."""
    votes: Counter[int] = Counter()
    keys = [key[:_MAX_LINE_CHARS] for key in index.by(stripped).keys]
    for probe in sorted(range(len(wanted)), key=lambda at: -len(wanted[at].strip()))[:_NUM_PROBES]:
        sought = stripped(wanted[probe])[:_MAX_LINE_CHARS]
        for _, score, at in process.extract(sought, keys, scorer=fuzz.ratio, limit=5, score_cutoff=60):
            votes[max(0, at - probe)] += int(score)
    return votes


def _compared(lines: Sequence[str], wanted: Sequence[str], votes: Counter[int]) -> list[Near]:
    near = [_best_end(lines, wanted, start) for start, _ in votes.most_common(_NUM_COMPARED)]
    return sorted((one for one in near if one is not None), key=lambda place: (-place.likeness, place.start))


def _best_end(lines: Sequence[str], wanted: Sequence[str], start: int) -> Near | None:
    """Return the place from `start` on that is most like what is wanted, and ends as it ends."""
    size = len(wanted)
    slack = min(_MAX_SLACK, size - 1)
    ends = range(start + size - slack, min(len(lines), start + size + slack) + 1)
    if not ends:
        return Near(start, len(lines), _likeness(wanted, lines[start:])) if start < len(lines) else None
    last = wanted[-1][:_MAX_LINE_CHARS]
    likeness = {end: _likeness(wanted, lines[start:end]) for end in ends}
    ranks = {
        end: likeness[end] + fuzz.ratio(last, lines[end - 1][:_MAX_LINE_CHARS]) / 5 - abs(end - start - size)
        for end in ends
    }
    best = max(ends, key=lambda end: ranks[end])
    return Near(start, best, likeness[best])


def _likeness(wanted: Sequence[str], found: Sequence[str]) -> float:
    sought, stands = "\n".join(wanted), "\n".join(found)
    if len(sought) + len(stands) <= _MAX_CHARS:
        return fuzz.ratio(sought, stands)
    if len(wanted) == len(found) <= 50:
        each = [fuzz.ratio(a[:_MAX_LINE_CHARS], b[:_MAX_LINE_CHARS]) for a, b in zip(wanted, found, strict=True)]
        return sum(each) / len(each)
    return 100 * Indel.normalized_similarity(list(map(stripped, wanted)), list(map(stripped, found)))


def _abridged(lines: Sequence[str]) -> Sequence[str]:
    return lines if len(lines) <= 3 else [lines[0], f"({len(lines) - 2} equal lines)", lines[-1]]


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]} ({len(line) - _MAX_LINE_CHARS} more)"
