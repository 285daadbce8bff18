"""Stored spans: entries, their slots, and their k-gram index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

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

    @property
    def hit_rate(self) -> float:
        """The share of the tokens looked up that was found."""
        return self.num_hit / self.num_queried if self.num_queried else 0.0
