"""Remembers which replica holds which prefix, and gives new ones to the replica with the least to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from cachetools import LRUCache

MAX_KEYS = 16384
"""Prefixes that are remembered."""

LIVE_SECONDS = 300.0
"""How long after its last request a prefix counts as work to come."""


class PrefixPlacement:
    """Chooses a replica for each request. Not thread-safe."""

    def __init__(self) -> None:
        self._places: LRUCache[str, tuple[str, float]] = LRUCache(MAX_KEYS)

    def rank(self, keys: Sequence[str], running: Mapping[str, int], now: float) -> list[str]:
        """Return all replicas, the best first: the one that the most specific known key went to, then those with the
        fewest live keys, then with the fewest requests.

        `keys`: of the request's prefixes, the most specific first. `running`: the requests of each replica. `now`: in
        seconds.
        """
        live = Counter(replica for replica, used in self._places.values() if used > now - LIVE_SECONDS)
        ranked = sorted(running, key=lambda replica: (live[replica], running[replica]))
        for key in keys:
            replica, _ = self._places.get(key, ("", 0.0))
            if replica in running:
                ranked.remove(replica)
                return [replica, *ranked]
        return ranked

    def record(self, keys: Sequence[str], replica: str, now: float) -> None:
        """Remember that a request with these keys went to a replica."""
        for key in keys:
            self._places[key] = replica, now
