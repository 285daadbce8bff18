"""Watches a workspace and reports batches of changed paths."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

from repo_cache.debouncer import Debouncer
from repo_cache.fallback_watchers import PollingSource, find_remote_file_system
from repo_cache.files import MAX_FILE_BYTES
from repo_cache.ignore import IgnoreRules
from repo_cache.types import Batch, Notice, NoticeKind

try:
    from repo_cache.inotify import InotifySource, WatchError
except ImportError:  # not Linux
    HAS_INOTIFY = False
else:
    HAS_INOTIFY = True

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Reports changes to a Debouncer."""

    def start(self) -> None:
        """Start watching; changes after this returns are reported."""

    def stop(self) -> None:
        """End the source's threads."""


class Watcher:
    """Calls `on_batch` in its own thread after `debounce_s` without changes, at the latest `max_delay_s` after the
    first change of a batch.

    `polling` None chooses: events, or polling on network mounts and where the system's limits forbid events, which a
    notice reports. False uses events on network mounts too. Writes through a memory map raise no event: callers that
    need them scan from time to time. An exception of `on_batch` is logged, and the next batch is a rescan.
    """

    def __init__(
        self,
        root: Path,
        rules: IgnoreRules,
        on_batch: Callable[[Batch], None],
        *,
        debounce_s: float = 0.05,
        max_delay_s: float = 0.5,
        polling: bool | None = None,
        poll_interval_s: float = 1.0,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._root, self._rules, self._on_batch = root.resolve(), rules, on_batch
        self._polling, self._poll_interval_s, self._max_file_bytes = polling, poll_interval_s, max_file_bytes
        self._changes = Debouncer(debounce_s=debounce_s, max_delay_s=max_delay_s)
        self._lock = threading.Lock()  # guards the sources and `_stopped`
        self._sources: list[Source] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="repo-cache-batches", daemon=True)

    def start(self) -> None:
        """Start watching; changes after this returns come in a batch. Scan after this call, not before."""
        if self._thread.ident is not None or self._stopped:
            raise RuntimeError("a watcher starts once")
        kind = find_remote_file_system(self._root) if self._polling is None else None
        if kind is not None:
            message = f"{self._root} is on a network mount ({kind}), whose changes are found by polling"
            self._changes.add_notice(Notice(NoticeKind.NETWORK_MOUNT, message))
        if self._polling or kind is not None:
            self._start_polling()
        else:
            self._start_events()
        self._thread.start()

    def stop(self) -> None:
        """End the threads; no batch comes after this returns. A second call does nothing."""
        with self._lock:
            self._stopped = True
            sources, self._sources = self._sources, []
        for source in sources:
            source.stop()
        self._changes.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_events(self) -> None:
        if HAS_INOTIFY:
            try:
                self._start_source(InotifySource(self._root, self._rules, self._changes, self._fall_back_to_polling))
            except WatchError as failure:
                self._fall_back_to_polling(failure.notice)
        else:
            from repo_cache.fallback_watchers import ObserverSource

            self._start_source(ObserverSource(self._root, self._rules, self._changes))

    def _fall_back_to_polling(self, notice: Notice) -> None:
        """Poll after events failed; the rescan finds the changes since then."""
        self._start_polling()
        self._changes.request_rescan(notice)

    def _start_polling(self) -> None:
        interval_s = self._poll_interval_s
        self._start_source(
            PollingSource(
                self._root, self._rules, self._changes, interval_s=interval_s, max_file_bytes=self._max_file_bytes
            )
        )

    def _start_source(self, source: Source) -> None:
        with self._lock:
            if self._stopped:
                return
            source.start()
            self._sources.append(source)

    def _run(self) -> None:
        while (batch := self._changes.wait()) is not None:
            try:
                self._on_batch(batch)
            except Exception:  # the outermost loop: a failure of the receiver does not end it
                logger.exception("a batch of changes was not processed; the next one is a rescan")
                self._changes.mark_rescan()
