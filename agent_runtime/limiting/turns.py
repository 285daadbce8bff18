"""Whose turn it is at the model: a tenant that asks a lot waits behind one that asks a little."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Gives each request its round; the engine admits smaller ones first (`GenerationRequest.priority`).

    A tenant's requests have one round after the other; with nothing in work it begins at the round that is being
    served. So while one has 100 requests waiting, rounds 1 to 100, another's first has round 1 too and waits for at
    most one of them, and within a tenant nobody overtakes (start-time fair queueing, Goyal et al. 1996, with all
    requests taken for equally long).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served = 0
        self._last: dict[str, int] = {}
        self._num_in_work: dict[str, int] = {}

    @contextmanager
    def turn(self, tenant: str) -> Iterator[int]:
        """The round of a request that is in work within the block."""
        with self._lock:
            number = max(self._served, self._last.get(tenant, 0)) + 1
            self._last[tenant] = number
            self._num_in_work[tenant] = self._num_in_work.get(tenant, 0) + 1
        try:
            yield number
        finally:
            with self._lock:
                self._served = max(self._served, number)
                self._num_in_work[tenant] -= 1
                if not self._num_in_work[tenant]:  # what is forgotten begins anew at the round that is served
                    del self._num_in_work[tenant], self._last[tenant]
