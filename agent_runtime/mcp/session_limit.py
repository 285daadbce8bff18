"""Bounds the sessions that one sender may have open: each costs memory until it is ended or nobody used it for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import TooManyRequests
from agent_runtime.http.holder import holder_of
from agent_runtime.http.problems import problem_response

SESSION_ID = "mcp-session-id"

MAX_OF_HOLDER = 64
MAX_IN_ALL = 1024
IDLE_SECONDS = 1800.0
"""Without a request or an open stream; then a session ends, and its agent begins another."""


@dataclass(slots=True)
class _Session:
    holder: str
    used_at: float
    num_in_work: int = 0


class SessionLimit:
    """Middleware around the protocol's own, which ends what is idle: answers 429 where a sender has too many sessions.

    A sender is a tenant, or an address where there are no tokens. Used on one event loop.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most: int = MAX_OF_HOLDER,
        idle_s: float = IDLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._most = most
        self._idle_s = idle_s
        self._clock = clock
        self._sessions: dict[str, _Session] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and follow which session it begins, uses or ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = Headers(scope=scope).get(SESSION_ID)
        if name is None:
            await self._begin(scope, receive, send)
        else:
            await self._use(name, scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        holder, now = holder_of(scope), self._clock()
        for name in [name for name, one in self._sessions.items() if self._is_over(one, now)]:
            del self._sessions[name]
        # A session that has just begun stands here by its name and as beginning, and counts once.
        if len({id(one) for one in self._sessions.values() if one.holder == holder}) >= self._most:
            fault = TooManyRequests(f"there are {self._most} sessions of yours already; end one of them")
            await problem_response(fault)(scope, receive, send)
            return
        session = _Session(holder, now, num_in_work=1)
        beginning = f"{id(session)} begins"  # no id of the protocol's has a blank; it counts from here on
        self._sessions[beginning] = session

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                name = Headers(raw=message["headers"]).get(SESSION_ID)
                if name is not None:
                    self._sessions[name] = session
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            del self._sessions[beginning]
            self._used(session)

    async def _use(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._sessions.get(name)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["method"] == "DELETE" and message["status"] < 400:
                self._sessions.pop(name, None)
            await send(message)

        if session is not None:
            session.num_in_work += 1
        try:
            await self._app(scope, receive, noted)
        finally:
            if session is not None:
                self._used(session)

    def _used(self, session: _Session) -> None:
        session.num_in_work -= 1
        session.used_at = self._clock()

    def _is_over(self, session: _Session, now: float) -> bool:
        return not session.num_in_work and now - session.used_at > self._idle_s
