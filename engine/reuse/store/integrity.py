"""The parts of the store's bookkeeping add up: a slow look at all of it, for tests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.reuse.store.anchors import ANCHOR_EVERY
from engine.reuse.store.entry import ENTRY_TOKENS, Entry
from engine.reuse.store.eviction import EvictionOrder
from engine.reuse.store.kgrams import KGRAM_LEN, kgram_hashes
from engine.reuse.store.slots import SlotPool
from engine.reuse.store.space import Space


def check_slots(pool: SlotPool, entries: Mapping[int, Entry]) -> None:
    """No two entries share a slot, and none has a free one."""
    held = [entry.slots for entry in entries.values() if entry.slots is not None]
    slots = np.concatenate(held) if held else np.empty(0, dtype=np.int64)
    assert len(np.unique(slots)) == len(slots), "two entries share a slot"
    assert not pool.is_free(slots).any(), "a slot is free and an entry's"
    assert pool.num_free == int(pool.is_free(np.arange(pool.num_slots)).sum())
    assert pool.num_free + len(slots) <= pool.num_slots


def check_entries(
    entries: Mapping[int, Entry], order: EvictionOrder, absent: Mapping[int, Entry], num_held: int, num_absent: int
) -> None:
    """Every entry has slots and a place in the order in which they go, or is known to be absent."""
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
    """Entries are joined to their neighbours both ways, and entered under just the k-grams that they hold."""
    for entry in entries.values():
        for neighbour, position in ((entry.before, entry.start), (entry.after, entry.end)):
            if neighbour is not None:
                assert entries[neighbour.number] is neighbour
                assert (neighbour.record, neighbour.root) == (entry.record, entry.root)
                assert position in (neighbour.start, neighbour.end)
        assert entry.before is None or entry.before.after is entry
        assert entry.after is None or entry.after.before is entry
        held = {} if entry.is_superseded else _kgrams(entry)
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


def _kgrams(entry: Entry) -> dict[int, int]:
    """The k-grams that an entry is to be found by, each with its first offset, told slowly."""
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
