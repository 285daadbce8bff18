"""The requests whose prefix is being fetched from the shared store."""

from __future__ import annotations

from collections.abc import Iterator

from engine.kv_cache import KVPages
from engine.prefix_tier.shared_prefixes import PrefixFetch, SharedPrefixes
from engine.request import RequestState
from engine.scheduler import ScheduledSequence, Scheduler, Status

NO_SEQUENCE = -1
"""Id of the sequence that only brings fetched KV into the prefix cache."""

MOST_MEETING = 4
"""Requests that are computed while chunks come from the back, which take memory until they meet."""

Held = tuple[ScheduledSequence, RequestState]


class FetchQueue:
    """Over a quick link a request waits until its prefix has come. Over a slow one it is computed from the front, while
    chunks come from the back, until the two meet (Cake: Jin et al., "Compute Or Load KV Cache? Why Not Both?", ICML
    2025).

    The engine's thread calls the methods.
    """

    def __init__(self, shared: SharedPrefixes) -> None:
        self.shared = shared
        self._held: dict[int, tuple[Held, PrefixFetch]] = {}
        self._meeting: dict[int, tuple[ScheduledSequence, PrefixFetch]] = {}

    def __bool__(self) -> bool:
        """Whether a request waits."""
        return bool(self._held)

    def start(self, sequence: ScheduledSequence, state: RequestState, pages: KVPages, tokens_per_s: float) -> bool:
        """Start to fetch a request's prefix, if that can pay; return whether the request waits for it here."""
        if len(self._meeting) >= MOST_MEETING:
            return False
        num_cached = pages.num_cached(sequence.cache_ids, sequence.root)
        fetch = self.shared.start_fetch(sequence.root, sequence.bare_ids, num_cached, tokens_per_s)
        if fetch is None:
            return False
        if fetch.is_from_back:
            self._meeting[sequence.id] = sequence, fetch
            return False
        self._held[sequence.id] = (sequence, state), fetch
        return True

    def wait(self) -> None:
        """Wait a moment for the next chunk of the requests that wait."""
        self.shared.wait([fetch for _, fetch in self._held.values()])

    def take_fetched(self, pages: KVPages, now: float) -> Iterator[Held]:
        """Put what has come into the prefix cache, and yield the requests that wait no longer."""
        for number, (held, fetch) in list(self._held.items()):
            deadline = held[0].deadline
            is_over = self.shared.is_over(fetch) or (deadline is not None and deadline <= now)
            self.shared.place(pages, fetch, NO_SEQUENCE)
            if is_over:
                self.shared.stop(fetch)
                del self._held[number]
                yield held

    def meet(self, pages: KVPages, scheduler: Scheduler) -> None:
        """Give the sequences that were computed up to their fetched chunks the KV of those."""
        for number, (sequence, fetch) in list(self._meeting.items()):
            if sequence.status is Status.WAITING:
                continue
            if sequence.plan is None and sequence.num_pending > 1:
                begin = sequence.num_computed
                end = self.shared.take_over(pages, fetch, number, begin)
                if end > begin:
                    scheduler.skip(number, end)
                elif fetch.arrived or not fetch.is_done:
                    continue
            self.stop(number)

    def stop(self, number: int) -> None:
        """Stop the fetch of a request, if it has one; it waits no longer."""
        for requests in (self._held, self._meeting):
            if number in requests:
                *_, fetch = requests.pop(number)
                self.shared.stop(fetch)

    def stop_all(self) -> None:
        """Stop all fetches."""
        for number in [*self._held, *self._meeting]:
            self.stop(number)

    def close(self) -> None:
        """Stop all fetches and the threads."""
        self.stop_all()
        self.shared.close()
