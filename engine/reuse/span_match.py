"""Finds the runs of a prompt's tokens that are stored, and chooses among overlapping ones."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from engine.reuse.span_entry import KGRAM_LEN, Anchors, Entry, TokenIds, kgram_hashes
from engine.token_prefix import count_common_prefix

MOST_CANDIDATES = 8
"""Entries with which a k-gram is compared, the newest: the licence text of a thousand files is not tried in all."""


class Piece(NamedTuple):
    """The tokens [first, end) of an entry, at `position` of the prompt."""

    position: int
    entry: Entry
    first: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """The prompt's tokens [start, end) are neighbours in one record; the first of them is at `offset` of `entry`."""

    start: int
    end: int
    entry: Entry
    offset: int

    def pieces(self) -> Iterator[Piece]:
        """Yield its part in each entry that it goes through."""
        position, entry, offset = self.start, self.entry, self.offset
        while True:
            last = min(len(entry.token_ids), offset + self.end - position)
            yield Piece(position, entry, offset, last)
            position += last - offset
            if position == self.end:
                return
            assert entry.after is not None, "the run goes on in the next entry"
            entry, offset = entry.after, 0

    def cut(self, start: int, end: int) -> Run:
        """Return the part at [start, end) of the prompt."""
        entry, offset = self.entry, self.offset + start - self.start
        while offset >= len(entry.token_ids):
            offset -= len(entry.token_ids)
            assert entry.after is not None, "the part lies within the run"
            entry = entry.after
        return Run(start, end, entry, offset)


def find_runs(anchors: Anchors, entry_of: Callable[[int], Entry], token_ids: TokenIds, first: int) -> list[Run]:
    """Return the longest runs of token_ids[first:] around the k-grams that are stored.

    A k-gram is looked up only if no run found so far covers it, so that a text that repeats itself, or is stored many
    times, costs a few comparisons for each of its runs.
    """
    runs: list[Run] = []
    covered = first
    hashes = kgram_hashes(token_ids[first:]).tolist()
    hits = [(place, kgram) for place, kgram in enumerate(hashes, first) if kgram in anchors]
    for place, kgram in hits:
        if place < covered:
            continue
        for number, offset in anchors.newest(kgram, MOST_CANDIDATES):
            run = _extend_run(token_ids, first, place, entry_of(number), offset)
            if run.end - run.start >= KGRAM_LEN:
                runs.append(run)
                covered = max(covered, run.end)
    return runs


def choose_runs(runs: Sequence[Run]) -> list[Run]:
    """Return runs and parts of runs that do not overlap, ascending: the longest first, others where they leave room.

    Of runs of one length, that of the record with which the prompt has most in common goes first (its parts attended to
    one another), then the lower generation, then the one found first, which is newer. The rest of a run must be at
    least as long as a k-gram.
    """
    in_common: Counter[int] = Counter()
    for run in runs:
        in_common[run.entry.record] += run.end - run.start

    def rank(run: Run) -> tuple[int, int, int, int, Run]:
        generation = max(piece.entry.generation for piece in run.pieces())
        return run.start - run.end, -in_common[run.entry.record], generation, next(order), run

    order = count()
    queue = [rank(run) for run in runs]
    heapify(queue)
    starts: list[int] = []
    chosen: dict[int, Run] = {}  # by start
    while queue:
        *_, run = heappop(queue)
        taken = [chosen[start] for start in _find_overlaps(run, starts, chosen)]
        if taken:
            for first, end in _find_gaps(run, taken):
                heappush(queue, rank(run.cut(first, end)))
        else:
            insort(starts, run.start)
            chosen[run.start] = run
    return [chosen[start] for start in starts]


def _find_overlaps(run: Run, starts: list[int], chosen: dict[int, Run]) -> list[int]:
    """Return the starts of the chosen runs that overlap this one, ascending."""
    first = bisect_left(starts, run.start)
    if first and chosen[starts[first - 1]].end > run.start:
        first -= 1
    return starts[first : bisect_left(starts, run.end)]


def _find_gaps(run: Run, taken: list[Run]) -> list[tuple[int, int]]:
    """Return the parts of a run outside those taken that are at least as long as a k-gram."""
    borders = [run.start, *(border for each in taken for border in (each.start, each.end)), run.end]
    parts = zip(borders[::2], borders[1::2], strict=True)
    return [(first, end) for first, end in parts if end - first >= KGRAM_LEN]


def _extend_run(token_ids: TokenIds, first: int, place: int, entry: Entry, offset: int) -> Run:
    """Return the longest run around a position of the prompt, not before `first`; empty if only the
    hashes are equal.
    """
    end = place
    at, behind = entry, offset
    while True:
        num_same = count_common_prefix(token_ids[end:], at.token_ids[behind:])
        end += num_same
        if behind + num_same < len(at.token_ids) or at.after is None:
            break
        at, behind = at.after, 0
    start = place
    while True:
        num_same = count_common_prefix(token_ids[first:start][::-1], entry.token_ids[:offset][::-1])
        start -= num_same
        offset -= num_same
        if offset or entry.before is None or start == first:
            break
        if token_ids[start - 1] != entry.before.token_ids[-1]:
            break
        entry = entry.before
        offset = len(entry.token_ids)
    return Run(start, end, entry, offset)
