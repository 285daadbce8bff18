"""What a watcher has told of and nobody has looked at yet; handed from its thread to the one that looks."""

from __future__ import annotations

import math
import threading
import time

from repo_cache.batches import Batch

MAX_PENDING_PATHS = 10_000
"""Of files that may have changed; where more pile up, everything is looked at instead."""


class Pending:
    """Batches put together to one, until they are taken. Thread-safe."""

    def __init__(self) -> None:
        self._more = threading.Condition()
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        self._everything = False
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._closed

    def add(self, batch: Batch) -> None:
        """Have this looked at, too."""
        with self._more:
            self._paths |= batch.paths
            self._folders |= batch.folders
            if batch.rescan or len(self._paths) > MAX_PENDING_PATHS:
                self._everything = True
                self._paths.clear()
                self._folders.clear()
            self._more.notify_all()

    def take(self, due: float) -> Batch | None:
        """What there is, once there is something; from `due` on (of `time.monotonic`) a rescan. None: it is closed."""
        with self._more:
            left = due - time.monotonic()
            self._more.wait_for(self._has_work, None if left == math.inf else max(left, 0.0))
            if self._closed:
                return None
            everything = self._everything or time.monotonic() >= due
            taken = Batch(rescan=True) if everything else Batch(frozenset(self._paths), frozenset(self._folders))
            self._paths, self._folders, self._everything = set(), set(), False
        return taken

    def close(self) -> bool:
        """Let whoever waits go; returns whether it was open."""
        with self._more:
            was_open, self._closed = not self._closed, True
            self._more.notify_all()
        return was_open

    def _has_work(self) -> bool:
        return bool(self._closed or self._everything or self._paths or self._folders)
