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
"""Kept for a subscriber that does not fetch them; the newest."""


@dataclass(frozen=True)
class Update:
    """From one snapshot to a later one: what making it took, and what there is to say about the watching.

    `encoded` has the number of tokens that were encoded anew for each file that was read and had changed, which is 0
    where its content was known; `milliseconds` is the time from the first look at a file to the snapshot.
    """

    since: Snapshot
    snapshot: Snapshot
    encoded: Mapping[str, int] = field(default_factory=dict)
    milliseconds: float = 0.0
    notices: tuple[Notice, ...] = ()

    @property
    def num_encoded(self) -> int:
        """Of all files."""
        return sum(self.encoded.values())

    @cached_property
    def changes(self) -> Changes:
        """By file; computed when first asked for, by whoever asks."""
        return self.snapshot.changes(self.since)

    def merge(self, later: Update) -> Update:
        """Both in one."""
        return replace(
            later,
            since=self.since,
            encoded={**self.encoded, **{path: self.encoded.get(path, 0) + num for path, num in later.encoded.items()}},
            milliseconds=self.milliseconds + later.milliseconds,
            notices=(*self.notices, *later.notices)[-MAX_NOTICES:],
        )


class Subscription:
    """The updates of a cache, for one reader: `get`, `for`, or `async for`; with a callback a thread of its own reads.

    At most one update waits: what comes meanwhile is joined to it, so that nothing is lost, nobody waits for a slow
    reader, and `update.changes` of one update follow on those of the last. The loops end when either side closes.
    """

    def __init__(self, on_close: Callable[[Subscription], None]) -> None:
        self._on_close = on_close
        self._changed = threading.Condition()
        self._waiting: Update | None = None
        self._closed = False
        self._wakers: set[Callable[[], None]] = set()

    def push(self, update: Update) -> None:
        """Called by the cache; never blocks for long."""
        with self._changed:
            if self._closed:
                return
            self._waiting = update if self._waiting is None else self._waiting.merge(update)
            self._wake()

    def get(self, timeout: float | None = None) -> Update | None:
        """The next update; None after `timeout` seconds, or where the subscription is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed, timeout)
            return self._take()

    @property
    def is_closed(self) -> bool:
        """Whether no further update will come but the one that may wait."""
        return self._closed

    def close(self) -> None:
        """End it; who waits in `get` returns."""
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
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
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
    """A started thread that calls back with each update; what the callback raises is logged."""

    def run() -> None:
        for update in subscription:
            try:
                callback(update)
            except Exception:  # a subscriber's fault is no other's
                logger.exception("a subscriber of the repository cache failed")

    thread = threading.Thread(target=run, name="hunk-subscriber", daemon=True)
    thread.start()
    return thread
