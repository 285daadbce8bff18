"""Which tokens are stored in which slots: entered, found again wherever they stand in a prompt, evicted. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import count, groupby, pairwise

import numpy as np

from engine.reuse.store.entry import ENTRY_TOKENS, Entry, Slots
from engine.reuse.store.eviction import EvictionOrder
from engine.reuse.store.integrity import check_entries, check_slots, check_spaces
from engine.reuse.store.kgrams import TokenIds, kgram_hashes
from engine.reuse.store.matching import Piece, choose, find_runs
from engine.reuse.store.slots import SlotPool
from engine.reuse.store.space import Space
from engine.reuse.store.stats import SpanStats
from engine.reuse.types import Match

ROOT_BYTES = 32
"""Of a root's digest. It goes into files, where a tenant's salt must not be read."""

MOST_SUPERSEDED = 8
"""Entries that begin with one k-gram and are compared when new tokens are entered, the newest: it need not find all."""


class SpanIndex:
    """The bookkeeping of a store of `num_slots` tokens.

    A slot is free, reserved, or an entry's. Tokens are found by their content under their own root only. `on_evict` is
    told of an entry whose slots are needed, and says whether its KV can be had again: then the entry can still be
    located, without slots, as the last `most_absent` tokens of such. first_record: the number of the first record.
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
        """What is stored of a prompt's tokens [first, len - 1): ascending, without overlap, each of one record.

        A run of as many tokens as a k-gram and `ANCHOR_EVERY` - 1 is never overlooked, though a part of it may go to
        another match. The slots hold good until the next `find` or `reserve`.
        """
        return self.take(self.locate(root, token_ids, first), len(token_ids) - 1 - first)

    def locate(self, root: bytes, token_ids: TokenIds, first: int) -> list[list[Piece]]:
        """The runs that `find` takes, with what has no slots among them, by the pieces of entries. Changes nothing."""
        space = self._spaces.get(root_digest(root))
        if space is None:
            return []
        token_ids = np.ascontiguousarray(token_ids[:-1], dtype=np.uint32)
        runs = choose(find_runs(space.anchors, self._entries.__getitem__, token_ids, first))
        return [list(run.pieces()) for run in runs]

    def take(self, runs: Iterable[Sequence[Piece]], num_queried: int) -> list[Match]:
        """The matches of runs, without what has no slots; counts their use, of so many tokens that were asked for."""
        matches = []
        for run in runs:
            for part in _same_generation(run):
                matches.append(_match_of(part))
                for piece in part:
                    piece.entry.num_uses += (piece.end - piece.first) / len(piece.entry.token_ids)
                    self._order.push(piece.entry)
        self._num_queried += max(0, num_queried)
        self._num_hit += sum(len(each.slots) for each in matches)
        return matches

    def new_record(self) -> int:
        """A number for one more prompt."""
        return next(self._records)

    def reserve(self, num_tokens: int, spared: Sequence[Entry] = ()) -> Slots | None:
        """Slots for so many tokens, by evicting if need be, though none of `spared`; None: there are not as many."""
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
        """Reserved slots are not needed after all."""
        self._slots.give_back(slots)

    def enter(
        self, root: bytes, token_ids: TokenIds, slots: Slots, generation: int, start: int, record: int | None = None
    ) -> None:
        """The KV of these tokens is final and in these slots, which were reserved.

        They stood at `start` of their prompt, in a row. record: that of the prompt's other tokens, None: a new one.
        Older entries whose tokens are among these are superseded, unless their generation is lower.
        """
        assert len(token_ids) == len(slots), "one slot a token"
        if record is None:
            record = self.new_record()
        digest = root_digest(root)
        token_ids, slots = np.array(token_ids, dtype=np.uint32), np.array(slots, dtype=np.int64)
        self._supersede(digest, record, token_ids, generation)
        for first, end in _cuts(start, len(token_ids)):
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
        """Have one more entry found, of a root with this digest; without slots: one whose KV can be had elsewhere."""
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
        """The KV of an entry without slots is in these again, which were reserved."""
        assert self._absent.pop(entry.number) is entry
        self._num_absent -= len(entry.token_ids)
        self._hold(entry, slots)

    def is_absent(self, entry: Entry) -> bool:
        """Whether the entry is known, and has no slots."""
        return entry.number in self._absent

    def remove(self, entry: Entry) -> None:
        """Find an entry no more: its KV is lost, or there is better."""
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

    def held(self) -> list[Entry]:
        """The entries that have slots, worth least first."""
        return sorted(self._order, key=lambda entry: (entry.priority, entry.last_used))

    def forget(self) -> None:
        """All slots are free again, the reserved ones too; records go on."""
        self._clear()

    def stats(self, token_bytes: int = 0) -> SpanStats:
        """Hits since the start, and what is stored now; `token_bytes` is what the KV of a token takes."""
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
        """The parts add up (AssertionError: they do not). As slow as the store is large: for tests."""
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
        """Have the entries go first whose tokens are all among these, which are newer and as good."""
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
        """A superseded entry is found only behind or before its neighbours, and leaves memory first."""
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
    """What a root is called in the store and in its files; 256 bits, so that nobody can make two roots meet."""
    return blake2b(root, digest_size=ROOT_BYTES).digest()


def _cuts(start: int, num_tokens: int) -> list[tuple[int, int]]:
    """The parts [first, end) of a stretch that become entries: cut where its record's positions are multiples."""
    borders = [0, *range(-start % ENTRY_TOKENS or ENTRY_TOKENS, num_tokens, ENTRY_TOKENS), num_tokens]
    return [(first, end) for first, end in pairwise(borders) if first < end]


def _same_generation(run: Sequence[Piece]) -> Iterator[list[Piece]]:
    """The pieces of a run in a row that are of one generation; those without slots are left out."""
    for (_, has_slots), pieces in groupby(run, _generation_and_presence):
        if has_slots:
            yield list(pieces)


def _generation_and_presence(piece: Piece) -> tuple[int, bool]:
    return piece.entry.generation, piece.entry.slots is not None


def _match_of(pieces: Sequence[Piece]) -> Match:
    head = pieces[0]
    slots = [piece.entry.slots[piece.first : piece.end] for piece in pieces if piece.entry.slots is not None]
    source = head.entry.start + head.first
    return Match(head.position, np.concatenate(slots), source, head.entry.record, head.entry.generation)
