"""Admits requests by what their tenant may take, and none while the service ends."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runtime.access.principal import LOCAL, Principal
from agent_runtime.errors import HunkError, TooManyRequests
from agent_runtime.http.access import KEY
from agent_runtime.http.draining import Drain
from agent_runtime.http.holder import holder_of
from agent_runtime.http.problems import problem_response
from agent_runtime.limiting import Tenants, Turns
from agent_runtime.telemetry.current_request import CURRENT
from agent_runtime.telemetry.metering import Metering

FREE_PATHS = frozenset({"/", "/healthz", "/readyz", "/metrics", "/stats", "/openapi.json"})
"""What is always answered: whoever watches a service has to see it when it is full, or ends."""

FREE_FOLDER = "/static/"


class Admission:
    """Middleware, inside of that which knows whose request it is: answers 429 or 503 before the body is read."""

    def __init__(self, app: ASGIApp, *, tenants: Tenants, turns: Turns, drain: Drain, metering: Metering) -> None:
        self._app = app
        self._tenants = tenants
        self._turns = turns
        self._drain = drain
        self._counters = metering.counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer a problem."""
        if scope["type"] != "http" or _is_free(scope["path"]):
            await self._app(scope, receive, send)
            return
        principal: Principal = scope.get(KEY, LOCAL)
        holder = holder_of(scope)
        begun = False
        try:
            with (
                self._drain.in_work(),
                self._tenants.admitted(principal.tenant),
                self._turns.turn(holder) as number,
            ):
                begun = True
                record = CURRENT.get()
                if record is not None:
                    record.round, record.holder = number, holder
                await self._app(scope, receive, send)
        except HunkError as fault:
            if begun:
                raise
            self._counters.refused(fault.limit if isinstance(fault, TooManyRequests) else fault.kind)
            await problem_response(fault)(scope, receive, send)


def _is_free(path: str) -> bool:
    return path in FREE_PATHS or path.startswith(FREE_FOLDER)
