"""Requests that wait for a workspace to change: so many of them, and no longer than somebody waits for the answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from agent_runtime.access.principal import Principal
from agent_runtime.browsing import changed
from agent_runtime.errors import Cancelled, TooManyRequests
from agent_runtime.http.draining import Drain
from agent_runtime.http.leaving import Departure
from repo_cache.cache import RepoCache
from repo_cache.snapshot import Snapshot

MAX_WAIT_SECONDS = 60.0
MAX_OF_TENANT = 64
MAX_IN_ALL = 256
"""Each waiting request holds a connection."""

LOOK_SECONDS = 0.5
"""How often is looked whether the service ends."""


class Waiters:
    """Those of one service; used on one event loop only."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._by_tenant: Counter[str] = Counter()

    async def wait(
        self, request: Request, principal: Principal, cache: RepoCache, since: Snapshot, timeout_s: float
    ) -> None:
        """Until the cache has another snapshot, the time is over or the service ends.

        Raises TooManyRequests where too many wait already, Cancelled where the client leaves, NotIndexed where the
        workspace is removed.
        """
        until = time.monotonic() + timeout_s
        with self._counted(principal.tenant):
            change = asyncio.create_task(changed(cache, since))
            leaving = asyncio.create_task(Departure().wait_for(request))
            try:
                while not self._drain.has_begun and (left := until - time.monotonic()) > 0:
                    await asyncio.wait(
                        (change, leaving), timeout=min(left, LOOK_SECONDS), return_when=asyncio.FIRST_COMPLETED
                    )
                    if change.done():
                        return change.result()
                    if leaving.done():
                        raise Cancelled("whoever asked has left")
            finally:
                for task in (change, leaving):
                    task.cancel()
                await asyncio.gather(change, leaving, return_exceptions=True)

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        if self._by_tenant[tenant] >= MAX_OF_TENANT or self._by_tenant.total() >= MAX_IN_ALL:
            raise TooManyRequests("too many requests wait for changes already; let one of them wait for all")
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1
