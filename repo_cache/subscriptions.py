"""Delivers updates to subscribers, each at its own pace."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from repo_cache.snapshot import Changes, Snapshot
from repo_cache.types import Notice

logger = logging.getLogger(__name__)

MAX_NOTICES = 20
"""The newest notices that are kept for a subscriber that does not fetch them."""


@dataclass(frozen=True)
class Update:
    """A step from one snapshot to a later one, its cost, and notices.

    `encoded` has the number of encoded tokens of each file that was read and had changed: 0 if its content was known.
    `milliseconds` is the time from the first look at a file to the snapshot.
    """

    since: Snapshot
    snapshot: Snapshot
    encoded: Mapping[str, int] = field(default_factory=dict)
    milliseconds: float = 0.0
    notices: tuple[Notice, ...] = ()

    @property
    def num_encoded(self) -> int:
        """The encoded tokens of all files."""
        return sum(self.encoded.values())

    @cached_property
    def changes(self) -> Changes:
        """The changes by file, computed at the first access."""
        return self.snapshot.changes(self.since)

    def merge(self, later: Update) -> Update:
        """Merge with the next update."""
        return replace(
            later,
            since=self.since,
            encoded={**self.encoded, **{path: self.encoded.get(path, 0) + num for path, num in later.encoded.items()}},
            milliseconds=self.milliseconds + later.milliseconds,
            notices=(*self.notices, *later.notices)[-MAX_NOTICES:],
        )


class Subscription:
    """The updates of a cache for one reader: `get`, `for` or `async for`. With a callback, a thread of its own reads.

    At most one update waits; later ones are merged into it. So nothing is lost, a slow reader delays nobody, and
    `update.changes` of successive updates are contiguous. The loops end when either side closes.
    """

    def __init__(self, on_close: Callable[[Subscription], None]) -> None:
        self._on_close = on_close
        self._changed = threading.Condition()
        self._waiting: Update | None = None
        self._closed = False
        self._wakers: set[Callable[[], None]] = set()

    def push(self, update: Update) -> None:
        """Add an update; called by the cache. Does not block for long."""
        with self._changed:
            if self._closed:
                return
            self._waiting = update if self._waiting is None else self._waiting.merge(update)
            self._wake()

    def get(self, timeout: float | None = None) -> Update | None:
        """Return the next update; None after `timeout` seconds or if the subscription is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed, timeout)
            return self._take()

    @property
    def is_closed(self) -> bool:
        """Whether no further update will come, apart from one that may wait."""
        return self._closed

    def close(self) -> None:
        """Close the subscription; a waiting `get` returns."""
        with self._changed:
            self._closed = True
            self._wake()
        self._on_close(self)

    def __iter__(self) -> Iterator[Update]:
        while (update := self.get()) is not None:
            yield update

    async def __aiter__(self) -> AsyncIterator[Update]:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def waker() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._wakers.add(waker)
        try:
            while True:
                woken.clear()
                with self._changed:
                    update, closed = self._take(), self._closed
                if update is not None:
                    yield update
                elif closed:
                    return
                else:
                    await woken.wait()
        finally:
            with self._changed:
                self._wakers.discard(waker)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> Update | None:
        update, self._waiting = self._waiting, None
        return update

    def _wake(self) -> None:
        self._changed.notify_all()
        for waker in self._wakers:
            waker()


def start_callback_thread(subscription: Subscription, callback: Callable[[Update], None]) -> threading.Thread:
    """Start a thread that calls back with each update; exceptions of the callback are logged."""

    def run() -> None:
        for update in subscription:
            try:
                callback(update)
            except Exception:  # the other subscribers go on
                logger.exception("a subscriber of the repository cache failed")

    thread = threading.Thread(target=run, name="hunk-subscriber", daemon=True)
    thread.start()
    return thread
