"""Where each block of a sketch belongs, by lines alone: chains of equal lines, rare ones counting most.

A block need not be a whole definition: three lines out of a loop are placed as well as a class. A chain pairs lines of
the block with lines of the file, ascending on both sides and not far apart (sparse dynamic programming over the pairs,
as in Baker and Giancarlo, 1998). Beyond the ends of a chain, lines that are like their neighbours count as changed and
the rest as new.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import log2

import numpy as np
from rapidfuzz import fuzz

from editor.lazy.edges import key
from editor.matching.ladder import rstripped
from editor.matching.spelling import in_spelling_of

_MAX_OCCURRENCES = 12
_MAX_PAIRS = 2_000
_MAX_DROPPED = 60
# What it costs that a line of the file is not among the block's, and that a line of the block is new.
_LOST_COST = 0.06
_MAX_LOST_COST = 0.5
_FAR_COST = 0.01
_NEW_COST = 0.002
_MIN_WEIGHT = 0.15
_LIKE = 60
_MAX_PLACES = 4
# A letter more or less says little; from this many on a line is taken to be about something.
_TELLING_CHARS = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Lines [start, end) of the file become `lines`. `trust` in [0, 1] says how well the block is held there."""

    start: int
    end: int
    lines: tuple[str, ...]
    trust: float
    score: float


class TellingLines:
    """Where each line of a file stands, spaces around it left out, and how much a line tells."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.places: dict[str, list[int]] = defaultdict(list)
        for at, line in enumerate(lines):
            if stripped := line.strip():
                self.places[stripped].append(at)

    def weight(self, line: str) -> float:
        """Return how much it tells that a line stands somewhere, in [0, 1]."""
        stripped = line.strip()
        num_telling = sum(map(str.isalnum, stripped[: 4 * _TELLING_CHARS]))
        return min(1.0, num_telling / _TELLING_CHARS) / (1.0 + log2(max(1, len(self.places.get(stripped, ())))))


def places_of(index: TellingLines, block: Sequence[str]) -> list[Place]:
    """Return the places where a block may belong, best first."""
    chains = _chains(index, block)
    found: list[Place] = []
    for score, chain in chains:
        place = _place(index, block, chain, score)
        if not any(place.start < other.end and other.start < place.end for other in found):
            found.append(place)
        if len(found) == _MAX_PLACES:
            break
    return found


def _chains(index: TellingLines, block: Sequence[str]) -> list[tuple[float, list[tuple[int, int]]]]:
    """Return (score, pairs of block line and file line) of the best chain for every end, best first."""
    pairs: list[tuple[int, int, float]] = []
    for row, line in enumerate(block):
        places = index.places.get(line.strip(), ()) if line.strip() else ()
        if places and len(places) <= _MAX_OCCURRENCES:
            pairs += ((row, at, index.weight(line)) for at in places)
    del pairs[_MAX_PAIRS:]
    best, before = _linked(pairs)
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


def _linked(pairs: Sequence[tuple[int, int, float]]) -> tuple[list[float], list[int]]:
    """Return for every pair the score of the best chain that ends with it, and the pair before it there (-1: none)."""
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


def _place(index: TellingLines, block: Sequence[str], chain: list[tuple[int, int]], score: float) -> Place:
    """Return the place of a chain: with the equal lines next to its ends, and with lines like those of the block."""
    lines = index.lines
    first, start = _grown(block, lines, *chain[0], -1)
    last, end = _grown(block, lines, *chain[-1], +1)
    held = {*range(first, chain[0][0]), *(row for row, _ in chain), *range(chain[-1][0] + 1, last + 1)}
    total = sum(index.weight(line) for line in block) or 1.0
    matched = sum(index.weight(block[row]) for row in held)
    solid = [row for row, line in enumerate(block) if line.strip()]
    closed = (solid[0] in held) + (solid[-1] in held)
    start -= _changed(block[:first][::-1], lines[:start][::-1])
    end += 1
    end += _changed(block[last + 1 :], lines[end:])
    return Place(
        start,
        end,
        tuple(in_spelling_of(lines[start:end], block)),
        trust=(closed / 2) * min(1.0, 0.5 + matched / total),
        score=score + 0.02 * len(held) + 0.2 * closed,
    )


def _grown(block: Sequence[str], lines: Sequence[str], row: int, at: int, step: int) -> tuple[int, int]:
    """Walk on from a pair over lines that are equal one by one; return the last pair."""
    while (
        0 <= row + step < len(block)
        and 0 <= at + step < len(lines)
        and rstripped(block[row + step]) == rstripped(lines[at + step])
    ):
        row, at = row + step, at + step
    return row, at


def _changed(inner: Sequence[str], outer: Sequence[str]) -> int:
    """Return how many lines of the file (outwards) are those of the block in another form."""
    taken = 0
    for line, have in zip(inner, outer, strict=False):
        alike = fuzz.ratio(line.strip(), have.strip()) >= _LIKE
        if not line.strip() and not have.strip():
            alike = True
        if not (alike or (key(line) and key(line) == key(have))):
            break
        taken += 1
    return taken
