"""Stored spans: entries, their slots, their k-gram index, and the stored runs of a prompt's tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.types import count_common_prefix

TokenIds = NDArray[np.uint32]

KGRAM_LEN = 8
"""Tokens of a k-gram: a power of two. No shorter run is found."""

MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, with well spread bits: 2**64 divided by the golden ratio."""

_POWERS = [np.uint64(pow(MULTIPLIER, 1 << level, 1 << 64)) for level in range(KGRAM_LEN.bit_length() - 1)]


def kgram_hashes(token_ids: TokenIds) -> NDArray[np.uint64]:
    """Return the hash of each k-gram, by its first token; a text of n tokens has n - k + 1 of them, or none.

    The polynomial of Karp and Rabin (1987), modulo 2**64: h(a b c ...) = (..(a + 1) m + (b + 1)) m + ... Hashes of
    twice as many tokens come from two of the half, so that all of a prompt's are log2(k) passes of numpy over it: 0.1
    ms for 16,000 tokens. Equal hashes do not prove equal tokens.
    """
    hashes = token_ids.astype(np.uint64) + np.uint64(1)
    width = 1
    for power in _POWERS:
        if len(hashes) <= width:
            return np.empty(0, dtype=np.uint64)
        hashes = hashes[:-width] * power + hashes[width:]
        width *= 2
    return hashes


ENTRY_TOKENS = 256
"""Records are split at the multiples of this: the most tokens of an entry."""

Slots = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Entry:
    """Neighbouring tokens of one record, and where their KV is.

    root: what its KV depends on besides the ids, as a digest. record: the prompt that it was computed in. start: the
    position of its first token there. slots: of the store's memory, one for each token; None if only a tier has the KV.
    before, after: the adjoining entries of its record. anchors: the hashes under which it is found. num_uses,
    last_used, priority: see `span_index`. is_superseded: newer KV of the same tokens is stored. is_kept: a tier has it,
    so that it need not be written again.
    """

    number: int
    root: bytes
    record: int
    start: int
    token_ids: TokenIds
    generation: int
    slots: Slots | None = None
    before: Entry | None = None
    after: Entry | None = None
    anchors: set[int] = field(default_factory=set)
    num_uses: float = 0.0
    last_used: int = 0
    priority: float = 0.0
    is_superseded: bool = False
    is_kept: bool = False

    @property
    def end(self) -> int:
        """The position after its last token in its record."""
        return self.start + len(self.token_ids)


ANCHOR_EVERY = 4
"""A k-gram is entered at every multiple of this position: any k + 3 tokens in a row hold one."""


class Anchors:
    """A table from the hash of a k-gram to the entries of one root that hold it.

    As in rsync (Tridgell and Mackerras 1996), stored text is entered at some positions and looked up at all positions
    of a prompt, so that a run is found wherever it is: at the multiples of `ANCHOR_EVERY` of its record, and where an
    entry begins. A k-gram may end in the next entry. An entry that repeats a k-gram is entered with its first one.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, dict[int, int]] = {}  # by hash: the entries' numbers, oldest first, and where

    def __contains__(self, kgram: int) -> bool:
        return kgram in self._offsets

    @property
    def num_places(self) -> int:
        """The number of pairs of an entry and a k-gram."""
        return sum(map(len, self._offsets.values()))

    def offset_of(self, kgram: int, entry: Entry) -> int:
        """Return the offset of a k-gram in an entry."""
        return self._offsets[kgram][entry.number]

    def newest(self, kgram: int, most: int) -> Iterator[tuple[int, int]]:
        """Yield up to `most` entries that hold a k-gram, by number, and their offsets, the newest first."""
        return islice(reversed(self._offsets.get(kgram, {}).items()), most)

    def add(self, entry: Entry) -> None:
        """Enter an entry that has just been linked to its neighbours, and the k-grams of earlier entries that end in
        it.
        """
        for earlier, first in _find_reaching(entry):
            self._add(earlier, first)
        self._add(entry, 0)

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is still linked to its neighbours, and the k-grams of earlier entries that end in it."""
        self.hide(entry)
        for earlier, first in _find_reaching(entry):
            for kgram in [each for each in earlier.anchors if self._offsets[each][earlier.number] >= first]:
                self._take_out(earlier, kgram)

    def hide(self, entry: Entry) -> None:
        """Remove the entry's own k-grams, so that it is no longer found by itself."""
        for kgram in list(entry.anchors):
            self._take_out(entry, kgram)

    def _take_out(self, entry: Entry, kgram: int) -> None:
        entry.anchors.discard(kgram)
        offsets = self._offsets[kgram]
        del offsets[entry.number]
        if not offsets:
            del self._offsets[kgram]

    def _add(self, entry: Entry, first: int) -> None:
        """Enter an entry's k-grams from an offset on."""
        if entry.is_superseded:
            return
        hashes = kgram_hashes(np.concatenate((entry.token_ids[first:], _get_next_tokens(entry, KGRAM_LEN - 1))))
        for offset, kgram in enumerate(hashes[: len(entry.token_ids) - first].tolist(), first):
            if (offset == 0 or (entry.start + offset) % ANCHOR_EVERY == 0) and kgram not in entry.anchors:
                entry.anchors.add(kgram)
                self._offsets.setdefault(kgram, {})[entry.number] = offset


def _find_reaching(entry: Entry) -> Iterator[tuple[Entry, int]]:
    """Yield the earlier entries whose k-grams reach into this one, each with the offset of the first that does."""
    distance, before = 0, entry.before
    while before is not None and distance < KGRAM_LEN - 1:
        distance += len(before.token_ids)
        yield before, max(0, distance - KGRAM_LEN + 1)
        before = before.before


def _get_next_tokens(entry: Entry, count: int) -> TokenIds:
    """Return the record's stored tokens after an entry, `count` at most."""
    parts = [entry.token_ids[:0]]
    while count > 0 and entry.after is not None:
        entry = entry.after
        parts.append(entry.token_ids[:count])
        count -= len(parts[-1])
    return np.concatenate(parts)


class Space:
    """The entries of one root: its k-grams, and its entries by record and the position that they begin or end at."""

    def __init__(self) -> None:
        self.anchors = Anchors()
        self.by_start: dict[tuple[int, int], Entry] = {}
        self.by_end: dict[tuple[int, int], Entry] = {}
        self.num_entries = 0

    def link(self, entry: Entry) -> None:
        """Link an entry to the adjoining ones of its record; of two for one position, the first stays linked."""
        self.num_entries += 1
        before, after = self.by_end.get((entry.record, entry.start)), self.by_start.get((entry.record, entry.end))
        if before is not None and before.after is None:
            entry.before, before.after = before, entry
        if after is not None and after.before is None:
            entry.after, after.before = after, entry
        self.by_start.setdefault((entry.record, entry.start), entry)
        self.by_end.setdefault((entry.record, entry.end), entry)

    def unlink(self, entry: Entry) -> None:
        """Unlink an entry from its neighbours."""
        self.num_entries -= 1
        if entry.before is not None:
            entry.before.after = None
        if entry.after is not None:
            entry.after.before = None
        entry.before = entry.after = None
        for entries, position in ((self.by_start, entry.start), (self.by_end, entry.end)):
            if entries.get((entry.record, position)) is entry:
                del entries[entry.record, position]


class SlotPool:
    """`num_slots` slots, one for each token, each free or in use."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._is_free: NDArray[np.bool_] = np.ones(num_slots, dtype=np.bool_)

    def take(self, count: int) -> Slots:
        """Return the lowest free slots, so that those taken together are mostly neighbours; enough must be free."""
        assert count <= self.num_free, "the caller evicts first"
        slots = np.flatnonzero(self._is_free)[:count]
        self._is_free[slots] = False
        self.num_free -= count
        return slots

    def give_back(self, slots: Slots) -> None:
        """Free these slots."""
        assert not self._is_free[slots].any(), "a slot is given back twice"
        self._is_free[slots] = True
        self.num_free += len(slots)

    def is_free(self, slots: Slots) -> NDArray[np.bool_]:
        """Return which of these are free."""
        return self._is_free[slots]


@dataclass(frozen=True, slots=True)
class SpanStats:
    """Counts of a span store: since the start, unless they describe its present content.

    num_queried, num_hit: tokens that were looked up after exact prefixes, and those of them that were found.
    num_evicted: entries whose memory was needed. num_entries, num_tokens, num_bytes: what is in memory now, of
    num_slots tokens. num_absent_tokens: what only a tier has now. num_tier_hits: entries that were read from the tier.
    num_tier_misses: entries that were missing or damaged there. num_tier_faults: entries that it could not write.
    num_tier_dropped: entries that were not written because too many waited.
    """

    num_queried: int
    num_hit: int
    num_evicted: int
    num_entries: int
    num_tokens: int
    num_bytes: int
    num_slots: int
    num_absent_tokens: int = 0
    num_tier_hits: int = 0
    num_tier_misses: int = 0
    num_tier_faults: int = 0
    num_tier_dropped: int = 0


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
