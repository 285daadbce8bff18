"""Gathers changes until they pause, and holds them until they are scanned."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Set

from repo_cache.types import Batch, Notice

MAX_PATHS = 10_000
"""With more paths than this in one batch, a rescan is cheaper to say and hardly dearer to do."""


class Debouncer:
    """What changed since the last batch; thread-safe.

    A batch is due `debounce_s` after the last change and at the latest `max_delay_s` after the first.
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
        """These files, and whatever lies below these folders, may have changed. The folder '' is the root."""
        new_paths, new_folders = set(paths), set(folders)
        if not new_paths and not new_folders:
            return
        with self._changed:
            self._paths |= new_paths
            self._folders |= new_folders
            if "" in self._folders or len(self._paths) + len(self._folders) > self._max_paths:
                self._rescan = True
            self._mark()

    def rescan(self, notice: Notice | None = None) -> None:
        """Anything may have changed."""
        with self._changed:
            self._rescan = True
            self._notices += (notice,) if notice else ()
            self._mark()

    def add_notice(self, notice: Notice) -> None:
        """Tell people; by itself this makes a batch too."""
        with self._changed:
            self._notices += (notice,)
            self._mark()

    def owe_rescan(self) -> None:
        """The next batch, whenever it comes, is a rescan: the last one was lost on its receiver."""
        with self._changed:
            self._rescan = True

    def due_in(self) -> float | None:
        """Seconds until a batch is due, 0 where it is; None while nothing changed."""
        with self._changed:
            if self._first is None:
                return None
            due = min(self._last + self._debounce_s, self._first + self._max_delay_s)
            return max(0.0, due - self._clock())

    def take(self) -> Batch:
        """Everything gathered until now."""
        with self._changed:
            folders = frozenset(folder for folder in self._folders if not _has_parent_in(folder, self._folders))
            paths = frozenset(path for path in self._paths if not _has_parent_in(path, folders))
            batch = Batch(paths, folders, self._rescan, self._notices)
            self._clear()
            return batch

    def wait(self) -> Batch | None:
        """Block until a batch is due; None once closed."""
        with self._changed:
            while not self._closed:
                due_in = self.due_in()
                if due_in == 0:
                    return self.take()
                self._changed.wait(due_in)
            return None

    def close(self) -> None:
        """Wake who waits; what is still gathered is dropped."""
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

    def _mark(self) -> None:
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
