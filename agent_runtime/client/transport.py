"""Requests and retries of calls, for httpx."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent_runtime.client.call import Call
from agent_runtime.client.config import MAX_CONNECTIONS, ClientSettings, Retries
from agent_runtime.errors import BadRequest, HunkError, NoConnection

TEMPORARY = frozenset({429, 502, 503, 504})
"""Statuses of errors that may be temporary. Of a temporary one Hunk sends Retry-After; a proxy may not."""


class RetryPolicy:
    """Decides whether and when one call is sent again."""

    def __init__(self, call: Call[Any], retries: Retries, base_url: str) -> None:
        self._call, self._retries, self._base_url = call, retries, base_url
        self._num_failed = 0

    def wait_after(self, error: Exception) -> float:
        """Return the seconds to wait after a failed attempt; raises NoConnection where there is no further one."""
        fault = connection_error(error, self._base_url, self._call)
        wait_s = self._draw_wait(0.0)
        if wait_s is None:
            raise fault from error
        return wait_s

    def wait_after_answer(self, response: httpx.Response) -> float | None:
        """Return the seconds to wait after an answer, None where it is final."""
        header = response.headers.get("Retry-After", "")
        is_permanent = not header and "problem+json" in response.headers.get("Content-Type", "")
        if response.status_code not in TEMPORARY or is_permanent:
            return None
        retry_after = parse_retry_after(header)
        return self._draw_wait(retry_after) if retry_after <= self._retries.longest_retry_after_s else None

    def _draw_wait(self, retry_after: float) -> float | None:
        if not self._call.may_repeat or self._num_failed >= self._retries.times:
            return None
        most = min(self._retries.longest_s, self._retries.first_s * 2**self._num_failed)
        self._num_failed += 1
        return retry_after + random.uniform(0.0, most)


def parse_retry_after(header: str) -> float:
    """Parse a Retry-After header, which may hold a date, into seconds; 0 where it is missing or unreadable."""
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def connection_error(error: Exception, base_url: str, call: Call[Any]) -> HunkError:
    """Return the error of an attempt without an answer."""
    what = str(error) or type(error).__name__
    if isinstance(error, httpx.ReadTimeout):
        text = f"{base_url} took the request and was silent for longer than the client waits ({what})"
    else:
        text = f"no answer from {base_url} ({what}); is `hunk serve` running there?"
    if call.idempotency_key is not None:
        text += (
            ". It is not known whether the service did it; the same call with "
            f"idempotency_key={call.idempotency_key!r} does it at most once"
        )
    return NoConnection(text)


FAILURES = (httpx.RequestError, httpx.InvalidURL)
"""Errors of an attempt without an answer."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Transport:
    """Builds the requests to one service, for the blocking and the asynchronous client."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self.base_url = settings.base_url

    def build_options(self) -> dict[str, Any]:
        """Build the arguments of httpx's clients. A proxy of the environment is not used for a service on loopback."""
        headers = {"Accept": "application/json"}
        if self._settings.token is not None:
            headers["Authorization"] = f"Bearer {self._settings.token}"
        return {
            "base_url": self.base_url,
            "headers": headers,
            "limits": httpx.Limits(max_connections=MAX_CONNECTIONS),
            "trust_env": urlsplit(self.base_url).hostname not in _LOOPBACK,
        }

    def build_request(self, http: httpx.Client | httpx.AsyncClient, call: Call[Any], accept: str = "") -> httpx.Request:
        """Build the request of one attempt; raises BadRequest where its body is not valid JSON."""
        headers = {"Accept": accept} if accept else {}
        if call.idempotency_key is not None:
            headers["Idempotency-Key"] = call.idempotency_key
        query, timeout = dict(call.query), self._build_timeout(call)
        try:
            return http.build_request(
                call.method, call.path, json=call.body, params=query, headers=headers, timeout=timeout
            )
        except ValueError as error:  # NaN, or half a surrogate pair
            raise BadRequest(f"the request cannot be sent: {error}") from error

    def retry_policy(self, call: Call[Any]) -> RetryPolicy:
        """Return the retry policy of one call."""
        return RetryPolicy(call, self._settings.retries, self.base_url)

    @contextmanager
    def translate_errors(self, call: Call[Any]) -> Iterator[None]:
        """Raise errors of httpx while an answer is read as NoConnection."""
        try:
            yield
        except FAILURES as error:
            raise connection_error(error, self.base_url, call) from error

    def _build_timeout(self, call: Call[Any]) -> httpx.Timeout:
        seconds = self._settings.timeouts
        silence = seconds.work_s if call.works else seconds.read_s
        read = None if silence is None else silence + call.silence_s
        return httpx.Timeout(connect=seconds.connect_s, read=read, write=seconds.write_s, pool=seconds.pool_s)
