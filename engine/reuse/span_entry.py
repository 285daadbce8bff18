"""Where the k-grams of stored entries stand: the way from a prompt's tokens to what is stored of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from engine.reuse.store.entry import Entry
from engine.reuse.store.kgrams import KGRAM_LEN, TokenIds, kgram_hashes

ANCHOR_EVERY = 4
"""Every so many positions of a record a k-gram is entered: any k + 3 tokens in a row hold one."""


class Anchors:
    """A table from the hash of a k-gram to the entries of one root that hold it.

    As in rsync (Tridgell and Mackerras 1996), what is stored is entered at some positions and looked up at all of a
    prompt's, so that a run is found wherever it stands: at the multiples of `ANCHOR_EVERY` of its record, and where an
    entry begins. A k-gram may end in the next entry. An entry that repeats a k-gram is entered with its first.
    """

    def __init__(self) -> None:
        self._offsets: dict[int, dict[int, int]] = {}  # by hash: the entries' numbers, oldest first, and where

    def __contains__(self, kgram: int) -> bool:
        return kgram in self._offsets

    @property
    def num_places(self) -> int:
        """Entries by k-gram, all counted."""
        return sum(map(len, self._offsets.values()))

    def offset_of(self, kgram: int, entry: Entry) -> int:
        """Where an entry holds a k-gram."""
        return self._offsets[kgram][entry.number]

    def newest(self, kgram: int, most: int) -> Iterator[tuple[int, int]]:
        """Numbers of up to `most` entries that hold a k-gram, and where they hold it, the newest first."""
        return islice(reversed(self._offsets.get(kgram, {}).items()), most)

    def add(self, entry: Entry) -> None:
        """Enter an entry that has just been linked to its neighbours, and what ends in it of those before."""
        for earlier, first in _reaching(entry):
            self._add(earlier, first)
        self._add(entry, 0)

    def remove(self, entry: Entry) -> None:
        """Take out an entry that is still linked to its neighbours, and what ends in it of those before."""
        self.hide(entry)
        for earlier, first in _reaching(entry):
            for kgram in [each for each in earlier.anchors if self._offsets[each][earlier.number] >= first]:
                self._take_out(earlier, kgram)

    def hide(self, entry: Entry) -> None:
        """Find an entry by itself no more."""
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
        hashes = kgram_hashes(np.concatenate((entry.token_ids[first:], _tokens_behind(entry, KGRAM_LEN - 1))))
        for offset, kgram in enumerate(hashes[: len(entry.token_ids) - first].tolist(), first):
            if (offset == 0 or (entry.start + offset) % ANCHOR_EVERY == 0) and kgram not in entry.anchors:
                entry.anchors.add(kgram)
                self._offsets.setdefault(kgram, {})[entry.number] = offset


def _reaching(entry: Entry) -> Iterator[tuple[Entry, int]]:
    """The entries before it whose k-grams reach into this one, each with the offset of the first that does."""
    distance, before = 0, entry.before
    while before is not None and distance < KGRAM_LEN - 1:
        distance += len(before.token_ids)
        yield before, max(0, distance - KGRAM_LEN + 1)
        before = before.before


def _tokens_behind(entry: Entry, count: int) -> TokenIds:
    """The record's next tokens behind an entry, as far as they are stored, `count` at most."""
    parts = [entry.token_ids[:0]]
    while count > 0 and entry.after is not None:
        entry = entry.after
        parts.append(entry.token_ids[:count])
        count -= len(parts[-1])
    return np.concatenate(parts)
