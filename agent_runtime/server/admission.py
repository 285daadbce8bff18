"""The end of a service: what runs is finished, what comes is sent elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from agent_runtime.errors import Ending


class Drain:
    """Counts the requests in work; once it has begun, new ones are refused and the old ones are waited for.

    Used on one event loop only.
    """

    def __init__(self) -> None:
        self._num_in_work = 0
        self._begun = False
        self._over = False
        self._waits: set[asyncio.Timeout] = set()
        self._nothing_left = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether the service is ending."""
        return self._begun

    @property
    def is_over(self) -> bool:
        """Whether what is still in work is to end now; to be asked from any thread."""
        return self._over

    @property
    def num_in_work(self) -> int:
        """Requests that are being answered."""
        return self._num_in_work

    def begin(self) -> None:
        """Take no more."""
        self._begun = True
        if not self._num_in_work:
            self._nothing_left.set()

    def cut_off(self) -> None:
        """Have what is still in work end."""
        self._over = True
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    @contextmanager
    def may_end(self, wait: asyncio.Timeout) -> Iterator[None]:
        """A wait for the client, which times out when the drain is over."""
        self._waits.add(wait)
        try:
            yield
        finally:
            self._waits.remove(wait)

    def check(self) -> None:
        """Raise Ending where the service is."""
        if self._begun:
            raise self.fault

    @property
    def fault(self) -> Ending:
        """What is answered instead of a result."""
        return Ending("the service is ending; send the request again in some seconds, or to another one")

    @contextmanager
    def in_work(self) -> Iterator[None]:
        """A request is answered within the block; raises Ending instead."""
        self.check()
        self._num_in_work += 1
        try:
            yield
        finally:
            self._num_in_work -= 1
            if self._begun and not self._num_in_work:
                self._nothing_left.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether all requests have ended within the time."""
        try:
            await asyncio.wait_for(self._nothing_left.wait(), timeout_s)
        except TimeoutError:
            return False
        return True
