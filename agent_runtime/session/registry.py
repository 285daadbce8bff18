"""Holds the sessions of a service by id, limits their number, and ends idle ones."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from agent_runtime.access import Principal
from agent_runtime.errors import SessionMissing, TooManyRequests
from agent_runtime.session.session import ServerSession

MAX_OF_TENANT = 32
MAX_IN_ALL = 256
"""Limit of all tenants together. A new session evicts the least recently used one."""

IDLE_SECONDS = 3600.0
"""A session that is not used for this long is ended."""


@dataclass(slots=True)
class _LiveSession:
    session: ServerSession
    tenant: str
    used_at: float


class SessionRegistry:
    """Sessions by id; a tenant sees only its own. Thread-safe."""

    def __init__(
        self,
        max_of_tenant: int = MAX_OF_TENANT,
        max_in_all: int = MAX_IN_ALL,
        idle_seconds: float = IDLE_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_of_tenant, self._max_in_all = max_of_tenant, max_in_all
        self._idle_seconds, self._now = idle_seconds, now
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, _LiveSession] = OrderedDict()
        """In order of use, the most recent last."""

    def add(self, session: ServerSession, principal: Principal) -> None:
        """Add a session; raises TooManyRequests if there is no room and all that could be evicted are busy."""
        with self._lock:
            self._end_idle()
            own = [kept for kept in self._by_id.values() if kept.tenant == principal.tenant]
            if len(own) >= self._max_of_tenant:
                self._make_room(own)
            elif len(self._by_id) >= self._max_in_all:
                self._make_room(list(self._by_id.values()))
            self._by_id[session.id] = _LiveSession(session, principal.tenant, self._now())

    def get(self, session_id: str, principal: Principal) -> ServerSession:
        """Return a session by id, which counts as its use; raises SessionMissing."""
        with self._lock:
            self._end_idle()
            kept = self._by_id.get(session_id)
            if kept is None or kept.tenant != principal.tenant:
                raise SessionMissing("there is no such session (any more): those that nobody uses are ended; begin one")
            kept.used_at = self._now()
            self._by_id.move_to_end(session_id)
            return kept.session

    def remove(self, session_id: str, principal: Principal) -> None:
        """End a session; raises SessionMissing."""
        session = self.get(session_id, principal)
        with self._lock:
            self._end(session)

    def end_matching(self, matches: Callable[[ServerSession], bool]) -> None:
        """End all sessions that match, such as those of a workspace that was removed."""
        with self._lock:
            for kept in list(self._by_id.values()):
                if matches(kept.session):
                    self._end(kept.session)

    def __len__(self) -> int:
        return len(self._by_id)

    def _end_idle(self) -> None:
        for kept in list(self._by_id.values()):
            if kept.session.is_busy:
                continue
            if self._now() - kept.used_at <= self._idle_seconds:
                break
            self._end(kept.session)

    def _make_room(self, among: list[_LiveSession]) -> None:
        for kept in among:
            if not kept.session.is_busy:
                self._end(kept.session)
                return
        raise TooManyRequests(f"{len(among)} sessions are at work, which is the most; end one, or wait for an answer")

    def _end(self, session: ServerSession) -> None:
        session.close()
        self._by_id.pop(session.id, None)
