"""The parts of an edit, and the places in the file where each may belong.

A part is a SEARCH block, a hunk, a substitution, or a block of a lazy snippet. A part that is, or nearly is, in several
places may change all of them.

A block of a snippet need not be a whole definition: three lines out of a loop are placed as well as a class. A chain
pairs lines of the block with lines of the file, ascending on both sides and not far apart (sparse dynamic programming
over the pairs, as in Baker and Giancarlo, 1998). Beyond the ends of a chain, lines similar to their neighbours count as
changed, the others as new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from math import log2

import numpy as np
from rapidfuzz import fuzz

from editor.lazy.doubts import find_line_key
from editor.match.file_style import keep_file_spacing
from editor.match.ladder import LineIndex, find_places, rstrip_blanks, strip_blank_lines
from editor.match.near_miss import find_nearest
from editor.required_lines import iter_solid_lines
from editor.scope import Span
from editor.snippets import flatten_sketch, survey_snippet
from editor.syntax import survey
from editor.types import ParsedEdit, Replacement, Sketch, Substitution, Substitutions

_MAX_OCCURRENCES = 12
_MAX_PAIRS = 2_000
_MAX_DROPPED = 60
# The costs of a line of the file that the block lacks, and of a new line of the block.
_LOST_COST = 0.06
_MAX_LOST_COST = 0.5
_FAR_COST = 0.01
_NEW_COST = 0.002
_MIN_WEIGHT = 0.15
_LIKE = 60
_MAX_PLACES = 4
# A line with at least so many letters and digits has its full weight.
_TELLING_CHARS = 8


@dataclass(frozen=True, slots=True)
class BlockMatch:
    """Lines [start, end) of the file become `lines`; `trust` in [0, 1] says how well the place is confirmed."""

    start: int
    end: int
    lines: tuple[str, ...]
    trust: float
    score: float


class LineWeights:
    """The places of each line of a file, without spaces around it, and the weight of a line as evidence."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.places: dict[str, list[int]] = defaultdict(list)
        for at, line in enumerate(lines):
            if stripped := line.strip():
                self.places[stripped].append(at)

    def compute_weight(self, line: str) -> float:
        """Return how much the presence of a line says about the place, in [0, 1]."""
        stripped = line.strip()
        num_telling = sum(map(str.isalnum, stripped[: 4 * _TELLING_CHARS]))
        return min(1.0, num_telling / _TELLING_CHARS) / (1.0 + log2(max(1, len(self.places.get(stripped, ())))))


def find_matches(index: LineWeights, block: Sequence[str]) -> list[BlockMatch]:
    """Return the places where a block may belong, best first."""
    chains = _find_chains(index, block)
    found: list[BlockMatch] = []
    for score, chain in chains:
        place = _match_chain(index, block, chain, score)
        if not any(place.start < other.end and other.start < place.end for other in found):
            found.append(place)
        if len(found) == _MAX_PLACES:
            break
    return found


def _find_chains(index: LineWeights, block: Sequence[str]) -> list[tuple[float, list[tuple[int, int]]]]:
    """Return (score, pairs of block line and file line) of the best chain for every end, best first."""
    pairs: list[tuple[int, int, float]] = []
    for row, line in enumerate(block):
        places = index.places.get(line.strip(), ()) if line.strip() else ()
        if places and len(places) <= _MAX_OCCURRENCES:
            pairs += ((row, at, index.compute_weight(line)) for at in places)
    del pairs[_MAX_PAIRS:]
    best, before = _link_pairs(pairs)
    linked = set(before)
    ends = sorted((number for number in range(len(pairs)) if number not in linked), key=lambda number: -best[number])
    chains = []
    for end in islice(ends, 3 * _MAX_PLACES):
        if best[end] < _MIN_WEIGHT:
            break
        chain: list[tuple[int, int]] = []
        at = end
        while at >= 0:
            chain.append(pairs[at][:2])
            at = before[at]
        chains.append((best[end], chain[::-1]))
    return chains


def _link_pairs(pairs: Sequence[tuple[int, int, float]]) -> tuple[list[float], list[int]]:
    """Return for each pair the score of the best chain that ends with it, and the pair before it (-1: none)."""
    rows = np.array([row for row, _, _ in pairs], dtype=np.int64)
    places = np.array([at for _, at, _ in pairs], dtype=np.int64)
    best = np.zeros(len(pairs))
    before = [-1] * len(pairs)
    for number, (row, at, weight) in enumerate(pairs):
        best[number] = weight
        if not number:
            continue
        lost = at - places[:number] - 1
        new = row - rows[:number] - 1
        cost = np.minimum(_LOST_COST * lost, _MAX_LOST_COST + _FAR_COST * lost) + _NEW_COST * new
        gains = np.where((lost >= 0) & (new >= 0) & (lost <= new + _MAX_DROPPED), best[:number] - cost, 0.0)
        link = int(gains.argmax())
        if gains[link] > 0:
            best[number] += gains[link]
            before[number] = link
    return best.tolist(), before


def _match_chain(index: LineWeights, block: Sequence[str], chain: list[tuple[int, int]], score: float) -> BlockMatch:
    """Return the place of a chain, extended by equal lines next to its ends and by similar lines beyond them."""
    lines = index.lines
    first, start = _extend_match(block, lines, *chain[0], -1)
    last, end = _extend_match(block, lines, *chain[-1], +1)
    held = {*range(first, chain[0][0]), *(row for row, _ in chain), *range(chain[-1][0] + 1, last + 1)}
    total = sum(index.compute_weight(line) for line in block) or 1.0
    matched = sum(index.compute_weight(block[row]) for row in held)
    solid = [row for row, line in enumerate(block) if line.strip()]
    closed = (solid[0] in held) + (solid[-1] in held)
    start -= _count_changed(block[:first][::-1], lines[:start][::-1])
    end += 1
    end += _count_changed(block[last + 1 :], lines[end:])
    return BlockMatch(
        start,
        end,
        tuple(keep_file_spacing(lines[start:end], block)),
        trust=(closed / 2) * min(1.0, 0.5 + matched / total),
        score=score + 0.02 * len(held) + 0.2 * closed,
    )


def _extend_match(block: Sequence[str], lines: Sequence[str], row: int, at: int, step: int) -> tuple[int, int]:
    """Return the last pair that is reached from a pair over equal lines."""
    while (
        0 <= row + step < len(block)
        and 0 <= at + step < len(lines)
        and rstrip_blanks(block[row + step]) == rstrip_blanks(lines[at + step])
    ):
        row, at = row + step, at + step
    return row, at


def _count_changed(inner: Sequence[str], outer: Sequence[str]) -> int:
    """Return how many lines of the file (outwards) are similar to those of the block."""
    taken = 0
    for line, have in zip(inner, outer, strict=False):
        alike = fuzz.ratio(line.strip(), have.strip()) >= _LIKE
        if not line.strip() and not have.strip():
            alike = True
        if not (alike or (find_line_key(line) and find_line_key(line) == find_line_key(have))):
            break
        taken += 1
    return taken


MIN_LIKENESS = 75.0
"""In per cent: a nearest place that is less similar to the lines says nothing about where they belong."""
LIKENESS_MARGIN = 10.0
"""In per cent: places whose similarity is below the best one by at most this may be meant as well."""
TIED_SHARE = 0.9
"""Places of a block with at least this share of the best score may be meant as well."""

SURE_SCORE = 1.0
"""The score of one unique, telling line: a piece of a snippet with less may be there by chance."""

MIN_TRUST = 0.5
"""The least trust at which a block's best place counts without a reading: one end of the block is there."""

MAX_FREE_LINES = 60
"""Lines. Places of new lines within so many lines are all given."""

_MAX_NEAR = 4


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one reading at one place: the lines of `span` are replaced by `new` (as in `Part.adds`)."""

    reading: int
    span: Span
    new: frozenset[str]


@dataclass(slots=True)
class Part:
    """One part of an edit: the lines that it `adds` (stripped, without blank ones), and the lines that it may change.

    `places` are where its own lines belong, () if unknown. `is_context` says that its lines are there unchanged,
    `is_sure` that they show the place without any reading. `changes` are the changes of the readings that belong to it.
    """

    adds: frozenset[str]
    places: tuple[Span, ...]
    is_context: bool = False
    is_sure: bool = True
    changes: list[Change] = field(default_factory=list)

    def find_touched(self, *, certain: bool) -> Span | None:
        """Return the hull of all lines that it may change, None if unknown; of a certain merge, those that it changes.

        New lines that no line of the file ties to one place are right anywhere: the best reading decides.
        """
        own = () if certain or self.is_context else self.places
        all_over = compute_hull((*own, *(change.span for change in self.changes)))
        if all_over is None or not self._is_free or all_over[1] - all_over[0] <= MAX_FREE_LINES:
            return all_over
        best = min(change.reading for change in self.changes)
        return compute_hull([change.span for change in self.changes if change.reading == best])

    @property
    def _is_free(self) -> bool:
        adding = (change.span[0] == change.span[1] and change.new <= self.adds for change in self.changes)
        return not self.places and all(adding)

    def has_place_of(self, change: Change) -> bool:
        """Return whether a change is at a place of the part, or borders on one."""
        return any(change.span[0] <= end and first <= change.span[1] for first, end in self.places)

    def has_lines_of(self, change: Change) -> bool:
        """Return whether all lines that a change writes are the part's."""
        return bool(change.new) and change.new <= self.adds


def compute_hull(spans: Sequence[Span]) -> Span | None:
    """Return the smallest span that contains all spans, None if there are none."""
    return (min(first for first, _ in spans), max(end for _, end in spans)) if spans else None


def find_parts(lines: list[str], edit: ParsedEdit, language: str | None) -> list[Part]:
    """Return the edit's parts in order, each with the places of its own lines."""
    changes = edit.changes
    if isinstance(changes, Sketch):
        return _build_block_parts(lines, changes, language)
    index = LineIndex(lines)
    if isinstance(changes, Substitutions):
        return [Part(_collect_lines(item.new.split("\n")), _find_text_places(index, item)) for item in changes.items]
    return [Part(_collect_lines(change.after), _find_line_places(index, change)) for change in changes]


def _collect_lines(lines: Sequence[str]) -> frozenset[str]:
    return frozenset(iter_solid_lines(lines))


def _find_line_places(index: LineIndex, change: Replacement) -> tuple[Span, ...]:
    hint = change.hint
    num_lines = len(index.lines)
    hinted = [] if hint.line is None else [(hint.line, hint.line + max(len(change.before), hint.num_unseen))]
    hinted += [(num_lines, num_lines)] if hint.at_end else []
    spans = tuple(span for span in hinted if span[1] <= num_lines)
    for wanted in (change.before, change.after):
        found = find_places(index, wanted) if any(map(str.strip, wanted)) else None
        if found is not None:
            return (*spans, *((start, start + len(wanted)) for start in found.starts))
    if any(map(str.strip, change.before)):
        near = find_nearest(index, change.before, _MAX_NEAR)
        least = max(MIN_LIKENESS, near[0].likeness - LIKENESS_MARGIN) if near else 0.0
        alike = tuple((place.start, place.end) for place in near if place.likeness >= least)
        return (*spans, *alike) if alike else ()  # a line number alone may be out of date
    return spans


def _find_text_places(index: LineIndex, item: Substitution) -> tuple[Span, ...]:
    text = "\n".join(index.lines)
    for wanted in (item.old, item.new):
        if wanted and wanted in text:
            return tuple(_find_spans(text, wanted))
    return _find_line_places(index, Replacement(tuple(item.old.split("\n")), tuple(item.new.split("\n"))))


def _find_spans(text: str, wanted: str) -> Iterator[Span]:
    row = behind = 0
    at = text.find(wanted)
    while at >= 0:
        row += text.count("\n", behind, at)
        yield row, row + wanted.count("\n") + 1
        behind = at
        at = text.find(wanted, at + len(wanted))


def _build_block_parts(lines: list[str], sketch: Sketch, language: str | None) -> list[Part]:
    telling, index = LineWeights(lines), LineIndex(lines)
    named = _find_definitions(lines, sketch, language)
    if (
        not sketch.elides
    ):  # models also send pieces of a file one below the other, with nothing but a blank line between
        named[0] += [place for piece in _split_pieces(sketch.blocks[0]) for place in _find_sure_places(telling, piece)]
    return [_build_block_part(telling, index, block, named[number]) for number, block in enumerate(sketch.blocks)]


def _split_pieces(block: Sequence[str]) -> Iterator[Sequence[str]]:
    for is_solid, piece in groupby(block, key=lambda line: bool(line.strip())):
        if is_solid:
            yield tuple(piece)


def _find_sure_places(telling: LineWeights, piece: Sequence[str]) -> list[Span]:
    return [(place.start, place.end) for place in _keep_tied(find_matches(telling, piece)) if place.score >= SURE_SCORE]


def _keep_tied(found: Sequence[BlockMatch]) -> list[BlockMatch]:
    return [place for place in found if place.score >= TIED_SHARE * found[0].score]


def _build_block_part(telling: LineWeights, index: LineIndex, block: Sequence[str], named: Sequence[Span]) -> Part:
    wanted = [line for line in block if line.strip()]
    stands = find_places(index, strip_blank_lines(block)) if wanted else None
    if stands is not None:
        places = tuple((start, start + len(strip_blank_lines(block))) for start in stands.starts)
        return Part(_collect_lines(block), places, is_context=True)
    found = _keep_tied(find_matches(telling, block))
    is_sure = bool(found) and found[0].trust >= MIN_TRUST
    return Part(_collect_lines(block), (*((place.start, place.end) for place in found), *named), is_sure=is_sure)


def _find_definitions(lines: list[str], sketch: Sketch, language: str | None) -> list[list[Span]]:
    """Return for each block the name lines in the file of the definitions that it holds.

    A definition of the same qualified name is the one that is meant. If there is none, all of that simple name are.
    """
    named: list[list[Span]] = [[] for _ in sketch.blocks]
    snippet, markers = flatten_sketch(sketch)
    seen = survey("\n".join(lines), language)
    sent = survey_snippet(["" if at in markers else line for at, line in enumerate(snippet)], language)
    if seen is None or sent is None:
        return named
    blocks = _number_blocks(snippet, markers)
    for symbol in sent.symbols:
        same = [one for one in seen.symbols if one.simple_name == symbol.simple_name]
        exact = [one for one in same if one.name == symbol.name]
        if symbol.name_line in blocks:
            named[blocks[symbol.name_line]] += [(one.name_line, one.name_line + 1) for one in exact or same]
    return named


def _number_blocks(snippet: Sequence[str], markers: frozenset[int]) -> dict[int, int]:
    """Return the block of each line of a flat snippet; blocks have a marker between them."""
    number, at_block = -1, {}
    for at in range(len(snippet)):
        if at not in markers:
            number += at == 0 or at - 1 in markers
            at_block[at] = number
    return at_block
