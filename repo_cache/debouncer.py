"""Gathers changes of files into batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Set

from repo_cache.types import Batch, Notice

MAX_PATHS = 10_000
"""For more paths in a batch, a rescan is simpler and hardly slower."""


class Debouncer:
    """Gathers changes until they pause. Thread-safe.

    A batch is due `debounce_s` after the last change, and at the latest `max_delay_s` after the first.
    """

    def __init__(
        self,
        *,
        debounce_s: float,
        max_delay_s: float,
        max_paths: int = MAX_PATHS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._debounce_s, self._max_delay_s, self._max_paths, self._clock = debounce_s, max_delay_s, max_paths, clock
        self._changed = threading.Condition()
        self._closed = False
        self._clear()

    def touch(self, paths: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
        """Add files, and folders whose whole contents may have changed. The folder '' is the root."""
        new_paths, new_folders = set(paths), set(folders)
        if not new_paths and not new_folders:
            return
        with self._changed:
            self._paths |= new_paths
            self._folders |= new_folders
            if "" in self._folders or len(self._paths) + len(self._folders) > self._max_paths:
                self._rescan = True
            self._note_change()

    def request_rescan(self, notice: Notice | None = None) -> None:
        """Make the next batch a rescan: anything may have changed."""
        with self._changed:
            self._rescan = True
            self._notices += (notice,) if notice else ()
            self._note_change()

    def add_notice(self, notice: Notice) -> None:
        """Add a notice; it makes a batch even without changes."""
        with self._changed:
            self._notices += (notice,)
            self._note_change()

    def mark_rescan(self) -> None:
        """Make the next batch a rescan whenever it comes, because its receiver failed to process the last one."""
        with self._changed:
            self._rescan = True

    def get_delay(self) -> float | None:
        """Return the seconds until a batch is due, 0 if it is due, None if nothing changed."""
        with self._changed:
            if self._first is None:
                return None
            due = min(self._last + self._debounce_s, self._first + self._max_delay_s)
            return max(0.0, due - self._clock())

    def take(self) -> Batch:
        """Return everything gathered so far."""
        with self._changed:
            folders = frozenset(folder for folder in self._folders if not _has_parent_in(folder, self._folders))
            paths = frozenset(path for path in self._paths if not _has_parent_in(path, folders))
            batch = Batch(paths, folders, self._rescan, self._notices)
            self._clear()
            return batch

    def wait(self) -> Batch | None:
        """Block until a batch is due; return None once closed."""
        with self._changed:
            while not self._closed:
                due_in = self.get_delay()
                if due_in == 0:
                    return self.take()
                self._changed.wait(due_in)
            return None

    def close(self) -> None:
        """Wake the waiting thread; changes that are not taken yet are dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _clear(self) -> None:
        self._paths: set[str] = set()
        self._folders: set[str] = set()
        self._rescan = False
        self._notices: tuple[Notice, ...] = ()
        self._first: float | None = None
        self._last = 0.0

    def _note_change(self) -> None:
        if self._rescan:
            self._paths.clear()
            self._folders.clear()
        self._last = self._clock()
        if self._first is None:
            self._first = self._last
            self._changed.notify_all()


def _has_parent_in(path: str, folders: Set[str]) -> bool:
    while folders and "/" in path:
        path = path.rpartition("/")[0]
        if path in folders:
            return True
    return False
