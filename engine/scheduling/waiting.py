"""The sequences that wait for pages or for a place, in the order in which they are to be admitted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import pairwise

from engine.errors import QueueFull
from engine.scheduling.sequence import Sequence

Rank = tuple[float, float, int]
"""Who goes first: the smaller rank. It never changes, so a queue that is sorted stays so."""


def ranking(aging_s: float | None) -> Callable[[Sequence], Rank]:
    """The rank of a sequence: by priority, then arrival; with aging, by `arrival + priority * aging_s`.

    The second is aging without a clock. Of two sequences, both have waited longer by the same time at any later
    moment, so who is first never changes: with aging_s = 30, one of priority 2 that came at second 0 goes before one
    of priority 0 that comes at second 61, and behind one that comes at second 59. Hence nobody starves: whatever
    comes `priority difference * aging_s` later ranks behind.
    """
    if aging_s is None:
        return lambda sequence: (sequence.priority, sequence.arrival, sequence.id)
    return lambda sequence: (sequence.arrival + sequence.priority * aging_s, sequence.arrival, sequence.id)


class WaitingQueue:
    """A bounded queue in order of rank; what was preempted comes back whatever the bound.

    A preempted sequence keeps its rank. So it goes before all of its priority that came later, and behind an earlier
    one that it had overtaken.
    """

    def __init__(self, max_waiting: int, rank: Callable[[Sequence], Rank]) -> None:
        self._max_waiting = max_waiting
        self._rank = rank
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of rank; the queue may change meanwhile."""
        return iter(tuple(self._sequences))

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence. Raises QueueFull."""
        if len(self._sequences) >= self._max_waiting:
            raise QueueFull(
                f"{len(self._sequences)} requests wait already and at most {self._max_waiting} may; try again later"
            )
        self.put_back(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Take a sequence that was preempted."""
        insort(self._sequences, sequence, key=self._rank)

    def remove(self, sequence: Sequence) -> None:
        """Admitted, or not wanted any more."""
        place = bisect_left(self._sequences, self._rank(sequence), key=self._rank)
        assert self._sequences[place] is sequence
        del self._sequences[place]

    def check_integrity(self) -> None:
        """In order, each once, none with KV."""
        ranks = [self._rank(sequence) for sequence in self._sequences]
        assert all(first < second for first, second in pairwise(ranks)), f"not in order: {ranks}"
        for sequence in self._sequences:
            assert sequence.num_computed == 0, f"sequence {sequence.id} waits and has KV"
