"""Writes entries to a tier behind the engine's back: a put does not wait, and is dropped when too much waits."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from threading import Condition, Thread

from engine.reuse.store.tier import KVTier, SpanHeader

log = logging.getLogger(__name__)

MOST_WAITING_BYTES = 1 << 28
"""Of entries that have left the store's memory and are not written yet: about forty of a model of 1.5B."""


class WriteBack:
    """A `KVTier` before another one. What waits to be written can be had from here.

    num_dropped: entries that were not taken because too much waited. num_faults: those that the tier did not take.
    """

    def __init__(self, tier: KVTier, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self.tier = tier
        self.num_dropped = 0
        self.num_faults = 0
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: dict[SpanHeader, memoryview] = {}  # the first is being written
        self._num_waiting_bytes = 0
        self._changed = Condition()
        self._is_closed = False
        self._thread = Thread(target=self._write_all, name="span-write-back", daemon=True)
        self._thread.start()

    @property
    def capacity_bytes(self) -> int:
        """That of the tier."""
        return self.tier.capacity_bytes

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        """Have an entry written soon; False: it is dropped."""
        with self._changed:
            if header in self._waiting:
                return True
            if self._is_closed or self._num_waiting_bytes + len(payload) > self._most_waiting_bytes:
                self.num_dropped += 1
                return False
            self._waiting[header] = payload
            self._num_waiting_bytes += len(payload)
            self._changed.notify_all()
        return True

    def get(self, header: SpanHeader) -> memoryview | None:
        """What waits, or what the tier has."""
        with self._changed:
            waiting = self._waiting.get(header)
        return self.tier.get(header) if waiting is None else waiting

    def headers(self) -> Iterable[SpanHeader]:
        """Those of the tier."""
        return self.tier.headers()

    def flush(self) -> None:
        """Wait until nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Write what waits, and take no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def write(self, header: SpanHeader, payload: memoryview) -> bool:
        """Write an entry now; False: the tier has not taken it."""
        try:
            is_kept = self.tier.put(header, payload)
        except Exception:  # a tier must not raise; one that does must not end the thread either
            log.exception("an entry was not written")
            is_kept = False
        self.num_faults += not is_kept
        return is_kept

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                header, payload = next(iter(self._waiting.items()))
            self.write(header, payload)
            with self._changed:
                del self._waiting[header]
                self._num_waiting_bytes -= len(payload)
                self._changed.notify_all()
