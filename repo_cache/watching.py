"""Watches a workspace and calls back with batches of what may have changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from repo_cache.batches import Batch
from repo_cache.ignoring import IgnoreRules


class Watcher:
    """Calls `on_batch` from one thread of its own after `debounce_s` of quiet, at the latest `max_delay_s` after the
    first event of a batch.

    `polling`: None picks (events, or polling for network mounts and where the system's limits forbid events).
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
    ) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Watch from here on: what changes after this returns comes in a batch. Scan after it, not before."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the threads; no batch comes after this returns. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
