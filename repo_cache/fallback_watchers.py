"""Finds changes by walking a workspace again and again, where the system cannot tell of them."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from repo_cache.batches import Notice, NoticeKind
from repo_cache.debouncing import Debouncer
from repo_cache.ignoring import IgnoreRules
from repo_cache.reading import MAX_FILE_BYTES, is_settled
from repo_cache.scanning import Scan, scan

logger = logging.getLogger(__name__)

MAX_SHARE = 0.1
"""At most this share of the time goes into walking: a walk that takes long is done less often."""


class PollingSource:
    """Compares stats of two walks. `interval_s`: from the end of a walk to the start of the next, at least."""

    def __init__(
        self,
        root: Path,
        rules: IgnoreRules,
        changes: Debouncer,
        *,
        interval_s: float,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._root, self._rules, self._changes = root, rules, changes
        self._interval_s, self._max_file_bytes = interval_s, max_file_bytes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repo-cache-polling", daemon=True)

    def start(self) -> None:
        """What changes after this returns is found."""
        self._seen = self._scan()
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it may finish the walk that it is at."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        duration_s = 0.0
        while not self._stopped.wait(max(self._interval_s, duration_s / MAX_SHARE - duration_s)):
            began = time.monotonic()
            try:
                self._poll()
            except Exception as error:  # the outermost loop: the next walk may do better
                logger.exception("a walk failed")
                notice = Notice(NoticeKind.FAILED, f"a walk of {self._root} failed and is tried again: {error!r}")
                self._changes.rescan(notice)
            duration_s = time.monotonic() - began

    def _poll(self) -> None:
        seen, self._seen = self._seen, self._scan()
        self._changes.touch(changed_paths(seen, self._seen))

    def _scan(self) -> Scan:
        return scan(self._root, self._rules, max_file_bytes=self._max_file_bytes)


def changed_paths(before: Scan, after: Scan) -> set[str]:
    """Paths that came, went, or have another stat or link; and those whose stat before did not vouch for anything.

    The latter were just written when they were seen, so a second write may not show in their stat.
    """
    changed = {
        path
        for path, stat in after.files.items()
        if before.files.get(path) != stat or not is_settled(stat, before.started_ns)
    }
    changed |= before.files.keys() - after.files.keys()
    changed |= {path for path, _ in before.links.items() ^ after.links.items()}
    return changed
