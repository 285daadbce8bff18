"""The order in which entries leave memory: what saved the most a byte and was used lately stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from engine.reuse.store.entry import Entry

MOST_USES = 8.0
"""Uses that count: a favourite of old goes too, after so many turnovers without a use."""


class EvictionOrder:
    """The entries that hold slots, by what they are worth.

    Greedy-dual size with frequency (Cherkasova 1998): an entry's priority is the clock at its last use, plus 1, plus
    the tokens that it has saved for each token that it takes; the clock is the priority of the last entry that went.
    So an entry that was used n times outlives n turnovers of the store, and where none is used, the least recently
    entered goes first. Superseded entries go before all others.

    The heap keeps stale items: one is good while its entry has that last use. It is swept when most are stale.
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
        """The entry has slots now, or its worth has changed: it was used, or superseded."""
        self._num_uses += 1
        entry.last_used = self._num_uses
        entry.priority = -1.0 if entry.is_superseded else self._clock + 1.0 + min(entry.num_uses, MOST_USES)
        self._entries[entry.number] = entry
        heappush(self._queue, (entry.priority, entry.last_used, entry.number))
        if len(self._queue) > 4 * len(self._entries) + 64:
            self._queue = [item for item in self._queue if self._is_current(item)]
            heapify(self._queue)

    def discard(self, entry: Entry) -> None:
        """The entry has no slots any more."""
        self._entries.pop(entry.number, None)

    def pop(self, may_go: Callable[[Entry], bool]) -> Entry | None:
        """Take out the entry that is worth least of those that may go; None where none may."""
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
