"""Slows down whoever sends tokens that the service does not know."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from agent_runtime.http.holder import network_of

BURST = 20
REFILL_SECONDS = 3.0
MAX_ADDRESSES = 4096


class Throttle:
    """Counts the failures of each client address: `BURST` at once, then one every `REFILL_SECONDS`.

    Only failures count, and a right token passes whatever came before: else one client could lock out all that share
    its address, such as those behind a proxy. What guards the tokens is that 256 random bits are guessed at no rate;
    this keeps the guesses from filling the log and the machine's time. The table is bounded: whoever failed longest
    ago is forgotten first. An IPv6 address counts with its /64, of which a client has all.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._free_at: OrderedDict[str, float] = OrderedDict()

    def failed(self, address: str) -> float:
        """Note a failure; the seconds until the next one is answered, 0 where this one still is."""
        key = network_of(address)
        now = self._clock()
        free_at = max(self._free_at.pop(key, now), now)  # when all failures so far are paid for
        wait = free_at + REFILL_SECONDS - now - BURST * REFILL_SECONDS
        self._free_at[key] = free_at if wait > 0 else free_at + REFILL_SECONDS
        if len(self._free_at) > MAX_ADDRESSES:
            self._free_at.popitem(last=False)
        return max(0.0, wait)

    def __len__(self) -> int:
        return len(self._free_at)
