"""The index of stored tokens by slot, with eviction and integrity checks. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import count, groupby, pairwise

import numpy as np

from engine.reuse.span_entry import (
    ANCHOR_EVERY,
    ENTRY_TOKENS,
    KGRAM_LEN,
    Entry,
    Piece,
    SlotPool,
    Slots,
    Space,
    SpanStats,
    TokenIds,
    choose_runs,
    find_runs,
    kgram_hashes,
)
from engine.types import Match

MOST_USES = 8.0
"""The most uses that count: an old favourite is evicted too, after enough turnovers without a use."""


class EvictionOrder:
    """The entries that hold slots, in the order of eviction.

    Greedy-dual size with frequency (Cherkasova 1998): an entry's priority is the clock at its last use, plus 1, plus
    the tokens that it has saved for each token that it takes; the clock is the priority of the last evicted entry. So
    an entry that was used n times outlives n turnovers of the store, and if none is used, the least recently entered is
    evicted first. Superseded entries are evicted before all others.

    The heap keeps stale items: an item is current while its entry has that last use. The heap is swept when most are
    stale.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by number
        self._queue: list[tuple[float, int, int]] = []  # (priority, last_used, number)
        self._clock = 0.0
        self._num_uses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def push(self, entry: Entry) -> None:
        """Add an entry that has slots now, or whose priority has changed: it was used, or superseded."""
        self._num_uses += 1
        entry.last_used = self._num_uses
        entry.priority = -1.0 if entry.is_superseded else self._clock + 1.0 + min(entry.num_uses, MOST_USES)
        self._entries[entry.number] = entry
        heappush(self._queue, (entry.priority, entry.last_used, entry.number))
        if len(self._queue) > 4 * len(self._entries) + 64:
            self._queue = [item for item in self._queue if self._is_current(item)]
            heapify(self._queue)

    def discard(self, entry: Entry) -> None:
        """Remove an entry that no longer has slots."""
        self._entries.pop(entry.number, None)

    def pop(self, may_go: Callable[[Entry], bool]) -> Entry | None:
        """Remove and return the entry of the lowest priority that may be evicted; None if none may."""
        spared = []
        found = None
        while self._queue and found is None:
            item = heappop(self._queue)
            if self._is_current(item):
                entry = self._entries[item[2]]
                if may_go(entry):
                    found = self._entries.pop(entry.number)
                    self._clock = max(self._clock, entry.priority)
                else:
                    spared.append(item)
        for item in spared:
            heappush(self._queue, item)
        return found

    def _is_current(self, item: tuple[float, int, int]) -> bool:
        entry = self._entries.get(item[2])
        return entry is not None and entry.last_used == item[1]


def check_slots(pool: SlotPool, entries: Mapping[int, Entry]) -> None:
    """Assert that no two entries share a slot, and that none has a free one."""
    held = [entry.slots for entry in entries.values() if entry.slots is not None]
    slots = np.concatenate(held) if held else np.empty(0, dtype=np.int64)
    assert len(np.unique(slots)) == len(slots), "two entries share a slot"
    assert not pool.is_free(slots).any(), "a slot is free and an entry's"
    assert pool.num_free == int(pool.is_free(np.arange(pool.num_slots)).sum())
    assert pool.num_free + len(slots) <= pool.num_slots


def check_entries(
    entries: Mapping[int, Entry], order: EvictionOrder, absent: Mapping[int, Entry], num_held: int, num_absent: int
) -> None:
    """Assert that every entry has slots and a position in the eviction order, or is known to be absent."""
    for number, entry in entries.items():
        assert entry.number == number
        assert 0 < len(entry.token_ids) <= ENTRY_TOKENS
        assert entry.slots is None or len(entry.slots) == len(entry.token_ids)
        assert not entry.is_superseded or entry.slots is not None, "what is superseded is not kept elsewhere"
    assert {entry.number for entry in order} == {entry.number for entry in entries.values() if entry.slots is not None}
    assert set(absent) == {entry.number for entry in entries.values() if entry.slots is None}
    assert num_held == sum(len(entry.slots) for entry in entries.values() if entry.slots is not None)
    assert num_absent == sum(len(entry.token_ids) for entry in absent.values())


def check_spaces(spaces: Mapping[bytes, Space], entries: Mapping[int, Entry]) -> None:
    """Assert that entries are linked both ways, and entered under exactly the k-grams that they hold."""
    for entry in entries.values():
        for neighbour, position in ((entry.before, entry.start), (entry.after, entry.end)):
            if neighbour is not None:
                assert entries[neighbour.number] is neighbour
                assert (neighbour.record, neighbour.root) == (entry.record, entry.root)
                assert position in (neighbour.start, neighbour.end)
        assert entry.before is None or entry.before.after is entry
        assert entry.after is None or entry.after.before is entry
        held = {} if entry.is_superseded else _find_kgrams(entry)
        assert entry.anchors == set(held), "an entry is found by what it does not hold, or not by what it does"
        for kgram, offset in held.items():
            assert spaces[entry.root].anchors.offset_of(kgram, entry) == offset
    for root, space in spaces.items():
        own = [entry for entry in entries.values() if entry.root == root]
        assert space.num_entries == len(own) > 0
        assert space.anchors.num_places == sum(len(entry.anchors) for entry in own)
        for key, entry in space.by_start.items():
            assert entries[entry.number] is entry
            assert key == (entry.record, entry.start)
        for key, entry in space.by_end.items():
            assert entries[entry.number] is entry
            assert key == (entry.record, entry.end)


def _find_kgrams(entry: Entry) -> dict[int, int]:
    """Return the k-grams by which an entry is found, each with its first offset, computed slowly."""
    parts, after = [entry.token_ids], entry.after
    while after is not None and sum(map(len, parts)) < len(entry.token_ids) + KGRAM_LEN:
        parts.append(after.token_ids)
        after = after.after
    text = np.concatenate(parts)
    found: dict[int, int] = {}
    for offset in range(len(entry.token_ids)):
        kgram = text[offset : offset + KGRAM_LEN]
        if len(kgram) == KGRAM_LEN and (offset == 0 or (entry.start + offset) % ANCHOR_EVERY == 0):
            found.setdefault(int(kgram_hashes(kgram)[0]), offset)
    return found


ROOT_BYTES = 32
"""Bytes of a root's digest. It goes into files, from which a tenant's salt must not be read."""

MOST_SUPERSEDED = 8
"""Entries beginning with one k-gram that are compared when new tokens are entered, the newest; not all
must be found."""


class SpanIndex:
    """The bookkeeping of a store of `num_slots` tokens.

    A slot is free, reserved, or an entry's. Tokens are found by their content under their own root only. `on_evict` is
    called with an entry whose slots are needed, and returns whether its KV can be read again: then the entry can still
    be located, without slots, up to `most_absent` tokens of such entries. first_record: the number of the first record.
    """

    def __init__(
        self,
        num_slots: int,
        *,
        on_evict: Callable[[Entry], bool] = lambda entry: False,
        most_absent: int = 0,
        first_record: int = 0,
    ) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots is {num_slots}; it must be at least 1")
        self.num_slots = num_slots
        self._on_evict = on_evict
        self._most_absent = most_absent
        self._records = count(first_record)
        self._numbers = count()
        self._num_queried = self._num_hit = self._num_evicted = 0
        self._clear()

    def find(self, root: bytes, token_ids: TokenIds, first: int) -> list[Match]:
        """Return what is stored of a prompt's tokens [first, len - 1): ascending, without overlap, each of one record.

        A run as long as a k-gram plus `ANCHOR_EVERY` - 1 is never overlooked, though a part of it may go to another
        match. The slots are valid until the next `find` or `reserve`.
        """
        return self.take(self.locate(root, token_ids, first), len(token_ids) - 1 - first)

    def locate(self, root: bytes, token_ids: TokenIds, first: int) -> list[list[Piece]]:
        """Return the runs that `find` takes, including entries without slots, as pieces of entries. Changes nothing."""
        space = self._spaces.get(root_digest(root))
        if space is None:
            return []
        token_ids = np.ascontiguousarray(token_ids[:-1], dtype=np.uint32)
        runs = choose_runs(find_runs(space.anchors, self._entries.__getitem__, token_ids, first))
        return [list(run.pieces()) for run in runs]

    def take(self, runs: Iterable[Sequence[Piece]], num_queried: int) -> list[Match]:
        """Return the matches of runs, without entries that have no slots, and count their use, of
        `num_queried` tokens.
        """
        matches = []
        for run in runs:
            for part in _split_by_generation(run):
                matches.append(_build_match(part))
                for piece in part:
                    piece.entry.num_uses += (piece.end - piece.first) / len(piece.entry.token_ids)
                    self._order.push(piece.entry)
        self._num_queried += max(0, num_queried)
        self._num_hit += sum(len(each.slots) for each in matches)
        return matches

    def new_record(self) -> int:
        """Return the number of a new record."""
        return next(self._records)

    def reserve(self, num_tokens: int, spared: Sequence[Entry] = ()) -> Slots | None:
        """Return slots for so many tokens, evicting entries except `spared` if needed; None if there are too few."""
        num_spared = sum(len(entry.slots) for entry in spared if entry.slots is not None)
        if num_tokens > self._slots.num_free + self._num_held - num_spared:
            return None
        numbers = {entry.number for entry in spared}
        while self._slots.num_free < num_tokens:
            entry = self._order.pop(lambda entry: entry.number not in numbers)
            assert entry is not None, "the entries' slots have been counted"
            self._evict(entry)
        return self._slots.take(num_tokens)

    def give_back(self, slots: Slots) -> None:
        """Free reserved slots."""
        self._slots.give_back(slots)

    def enter(
        self, root: bytes, token_ids: TokenIds, slots: Slots, generation: int, start: int, record: int | None = None
    ) -> None:
        """Enter tokens whose KV is final and in these slots, which were reserved.

        They were at `start` of their prompt, neighbours. record: that of the prompt's other tokens, None: a new one.
        Older entries whose tokens are among these are superseded, unless their generation is lower.
        """
        assert len(token_ids) == len(slots), "one slot a token"
        if record is None:
            record = self.new_record()
        digest = root_digest(root)
        token_ids, slots = np.array(token_ids, dtype=np.uint32), np.array(slots, dtype=np.int64)
        self._supersede(digest, record, token_ids, generation)
        for first, end in _split_entries(start, len(token_ids)):
            self.add(digest, record, start + first, token_ids[first:end], generation, slots[first:end])

    def add(
        self,
        digest: bytes,
        record: int,
        start: int,
        token_ids: TokenIds,
        generation: int,
        slots: Slots | None = None,
    ) -> Entry:
        """Add an entry of a root with this digest; without slots, one whose KV can be read elsewhere."""
        space = self._spaces.setdefault(digest, Space())
        entry = Entry(next(self._numbers), digest, record, start, token_ids, generation)
        self._entries[entry.number] = entry
        space.link(entry)
        space.anchors.add(entry)
        if slots is None:
            self._keep_absent(entry)
        else:
            self._hold(entry, slots)
        return entry

    def restore(self, entry: Entry, slots: Slots) -> None:
        """Give an absent entry these slots, which were reserved and hold its KV again."""
        assert self._absent.pop(entry.number) is entry
        self._num_absent -= len(entry.token_ids)
        self._hold(entry, slots)

    def is_absent(self, entry: Entry) -> bool:
        """Return whether the entry is known and has no slots."""
        return entry.number in self._absent

    def remove(self, entry: Entry) -> None:
        """Remove an entry: its KV is lost, or there is better."""
        if entry.slots is not None:
            self._let_go(entry)
        elif self._absent.pop(entry.number, None) is not None:
            self._num_absent -= len(entry.token_ids)
        del self._entries[entry.number]
        space = self._spaces[entry.root]
        space.anchors.remove(entry)
        space.unlink(entry)
        if not space.num_entries:
            del self._spaces[entry.root]

    def list_entries(self) -> list[Entry]:
        """Return the entries that have slots, the lowest priority first."""
        return sorted(self._order, key=lambda entry: (entry.priority, entry.last_used))

    def forget(self) -> None:
        """Remove all entries and free all slots, including reserved ones; record numbers go on."""
        self._clear()

    def stats(self, token_bytes: int = 0) -> SpanStats:
        """Return hits since the start, and what is stored now; `token_bytes` is the size of a token's KV."""
        return SpanStats(
            num_queried=self._num_queried,
            num_hit=self._num_hit,
            num_evicted=self._num_evicted,
            num_entries=len(self._order),
            num_tokens=self._num_held,
            num_bytes=self._num_held * token_bytes,
            num_slots=self.num_slots,
            num_absent_tokens=self._num_absent,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if the parts do not add up. As slow as the store is large: for tests."""
        check_slots(self._slots, self._entries)
        check_entries(self._entries, self._order, self._absent, self._num_held, self._num_absent)
        check_spaces(self._spaces, self._entries)

    def _clear(self) -> None:
        self._slots = SlotPool(self.num_slots)
        self._order = EvictionOrder()
        self._spaces: dict[bytes, Space] = {}
        self._entries: dict[int, Entry] = {}
        self._absent: dict[int, Entry] = {}  # by number, evicted first first
        self._num_held = self._num_absent = 0

    def _supersede(self, digest: bytes, record: int, token_ids: TokenIds, generation: int) -> None:
        """Mark entries whose tokens are all among these as superseded: these are newer and as good."""
        space = self._spaces.get(digest)
        if space is None:
            return
        for place, kgram in enumerate(kgram_hashes(token_ids).tolist()):
            if kgram not in space.anchors:
                continue
            for number, offset in list(space.anchors.newest(kgram, MOST_SUPERSEDED)):
                entry = self._entries[number]
                if offset or entry.generation < generation or entry.record == record:
                    continue
                if np.array_equal(entry.token_ids, token_ids[place : place + len(entry.token_ids)]):
                    self._hide(entry)

    def _hide(self, entry: Entry) -> None:
        """Mark an entry as superseded: it is found only through its neighbours, and is evicted first."""
        if entry.slots is None:
            self.remove(entry)
            return
        entry.is_superseded = True
        self._spaces[entry.root].anchors.hide(entry)
        self._order.push(entry)

    def _evict(self, entry: Entry) -> None:
        self._num_evicted += 1
        can_be_had_again = not entry.is_superseded and self._on_evict(entry)
        self._let_go(entry)
        if can_be_had_again:
            self._keep_absent(entry)
        else:
            self.remove(entry)

    def _hold(self, entry: Entry, slots: Slots) -> None:
        assert len(slots) == len(entry.token_ids), "one slot a token"
        entry.slots = slots
        self._num_held += len(slots)
        self._order.push(entry)

    def _let_go(self, entry: Entry) -> None:
        assert entry.slots is not None
        self._slots.give_back(entry.slots)
        self._num_held -= len(entry.slots)
        self._order.discard(entry)
        entry.slots = None

    def _keep_absent(self, entry: Entry) -> None:
        self._absent[entry.number] = entry
        self._num_absent += len(entry.token_ids)
        while self._num_absent > self._most_absent:
            self.remove(next(iter(self._absent.values())))


def root_digest(root: bytes) -> bytes:
    """Return the digest that stands for a root in the store and its files; 256 bits, so that nobody can make two roots
    collide.
    """
    return blake2b(root, digest_size=ROOT_BYTES).digest()


def _split_entries(start: int, num_tokens: int) -> list[tuple[int, int]]:
    """Return the parts [first, end) of a stretch that become entries: split at multiples of its record's positions."""
    borders = [0, *range(-start % ENTRY_TOKENS or ENTRY_TOKENS, num_tokens, ENTRY_TOKENS), num_tokens]
    return [(first, end) for first, end in pairwise(borders) if first < end]


def _split_by_generation(run: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield neighbouring pieces of a run that are of one generation, without those that have no slots."""
    for (_, has_slots), pieces in groupby(run, _generation_and_presence):
        if has_slots:
            yield list(pieces)


def _generation_and_presence(piece: Piece) -> tuple[int, bool]:
    return piece.entry.generation, piece.entry.slots is not None


def _build_match(pieces: Sequence[Piece]) -> Match:
    head = pieces[0]
    slots = [piece.entry.slots[piece.first : piece.end] for piece in pieces if piece.entry.slots is not None]
    source = head.entry.start + head.first
    return Match(head.position, np.concatenate(slots), source, head.entry.record, head.entry.generation)
