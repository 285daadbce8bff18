"""Makes HTTP requests of calls for one service; blocking and asynchronous clients send the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent_runtime.client.call import Call
from agent_runtime.client.retrying import Attempts, no_connection
from agent_runtime.client.settings import MAX_CONNECTIONS, ClientSettings
from agent_runtime.errors import BadRequest

FAILURES = (httpx.RequestError, httpx.InvalidURL)
"""What an attempt raises that brings no answer."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Wire:
    """How one service is spoken to."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.base_url = settings.base_url

    def options(self) -> dict[str, Any]:
        """For httpx's clients. A proxy of the environment is for other machines, not for a service on this one."""
        headers = {"Accept": "application/json"}
        if self._settings.token is not None:
            headers["Authorization"] = f"Bearer {self._settings.token}"
        return {
            "base_url": self.base_url,
            "headers": headers,
            "limits": httpx.Limits(max_connections=MAX_CONNECTIONS),
            "trust_env": urlsplit(self.base_url).hostname not in _LOOPBACK,
        }

    def request(self, http: httpx.Client | httpx.AsyncClient, call: Call[Any], accept: str = "") -> httpx.Request:
        """One attempt; raises BadRequest where something in it cannot be sent."""
        headers = {"Accept": accept} if accept else {}
        if call.idempotency_key is not None:
            headers["Idempotency-Key"] = call.idempotency_key
        query, timeout = dict(call.query), self._timeout(call)
        try:
            return http.build_request(
                call.method, call.path, json=call.body, params=query, headers=headers, timeout=timeout
            )
        except ValueError as error:  # NaN, or half a surrogate pair
            raise BadRequest(f"the request cannot be sent: {error}") from error

    def attempts(self, call: Call[Any]) -> Attempts:
        """Those at one call."""
        return Attempts(call, self._settings.retries, self.base_url)

    @contextmanager
    def translated(self, call: Call[Any]) -> Iterator[None]:
        """What httpx raises while an answer is read, as NoConnection."""
        try:
            yield
        except FAILURES as error:
            raise no_connection(error, self.base_url, call) from error

    def _timeout(self, call: Call[Any]) -> httpx.Timeout:
        seconds = self._settings.timeouts
        silence = seconds.work_s if call.works else seconds.read_s
        read = None if silence is None else silence + call.silence_s
        return httpx.Timeout(connect=seconds.connect_s, read=read, write=seconds.write_s, pool=seconds.pool_s)
