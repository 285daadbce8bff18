"""Settings of a client, and the requests and retries of its calls, for httpx."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from agent_runtime.client.calls import Call
from agent_runtime.errors import BadRequest, HunkError, NoConnection

DEFAULT_URL = "http://127.0.0.1:8311"
"""The default address of `hunk serve`."""

MAX_CONNECTIONS = 256
"""Open connections of a client; further calls wait for one."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds, None for no limit. A timeout raises NoConnection.

    connect_s: to open a connection. read_s: the longest silence before and during an answer; work_s replaces it for
    calls that merge an edit or ask the model, as a model may need minutes for a long file, and closing cancels the
    work. write_s: the longest pause while the request is sent. pool_s: to wait for one of this client's 256
    connections.
    """

    connect_s: float | None = 5.0
    read_s: float | None = 30.0
    work_s: float | None = None
    write_s: float | None = 30.0
    pool_s: float | None = None


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a repeatable call is sent again, and after which wait.

    The wait is random between 0 and `first_s`, doubled for each attempt, at most `longest_s` (full jitter, so that
    clients that failed together do not return together). It is added to the seconds that the service asks for
    (Retry-After); where these are more than `longest_retry_after_s`, the error is raised instead.
    """

    times: int = 2
    first_s: float = 0.25
    longest_s: float = 8.0
    longest_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        if self.times < 0 or self.first_s < 0 or self.longest_s < 0 or self.longest_retry_after_s < 0:
            raise BadRequest(f"retries and their waits cannot be negative: {self}", field="retries")


NO_RETRIES = Retries(times=0)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Address, token, timeouts and retries of a client. The token does not appear in the representation."""

    base_url: str = DEFAULT_URL
    token: str | None = field(default=None, repr=False)
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        *,
        base_url: str | None = None,
        token: str | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = None,
    ) -> ClientSettings:
        """Return the given settings, by default from `HUNK_URL` and `HUNK_TOKEN`; raises BadRequest on a bad value."""
        url = base_url if base_url is not None else environ.get("HUNK_URL") or DEFAULT_URL
        name = "base_url" if base_url is not None else "HUNK_URL"
        if not _is_url(url):
            raise BadRequest(f"{name} is {url!r}: give a URL such as {DEFAULT_URL}", field=name)
        secret = token if token is not None else environ.get("HUNK_TOKEN") or None
        if secret is not None and not re.fullmatch("[!-~]+", secret):
            name = "token" if token is not None else "HUNK_TOKEN"
            raise BadRequest(f"{name} is no token: it has other characters than printable ASCII, or none", field=name)
        return cls(url, secret, timeouts or Timeouts(), retries or Retries())


def _is_url(text: str) -> bool:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host)


TEMPORARY = frozenset({429, 502, 503, 504})
"""Statuses of errors that may be temporary. Of a temporary one Hunk sends Retry-After; a proxy may not."""


class RetryPolicy:
    """Decides whether and when one call is sent again."""

    def __init__(self, call: Call[Any], retries: Retries, base_url: str) -> None:
        self._call, self._retries, self._base_url = call, retries, base_url
        self._num_failed = 0

    def wait_after(self, error: Exception) -> float:
        """Return the seconds to wait after a failed attempt; raises NoConnection where there is no further one."""
        fault = make_connection_error(error, self._base_url, self._call)
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


def make_connection_error(error: Exception, base_url: str, call: Call[Any]) -> HunkError:
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

    def make_retry_policy(self, call: Call[Any]) -> RetryPolicy:
        """Return the retry policy of one call."""
        return RetryPolicy(call, self._settings.retries, self.base_url)

    @contextmanager
    def translate_errors(self, call: Call[Any]) -> Iterator[None]:
        """Raise errors of httpx while an answer is read as NoConnection."""
        try:
            yield
        except FAILURES as error:
            raise make_connection_error(error, self.base_url, call) from error

    def _build_timeout(self, call: Call[Any]) -> httpx.Timeout:
        seconds = self._settings.timeouts
        silence = seconds.work_s if call.works else seconds.read_s
        read = None if silence is None else silence + call.silence_s
        return httpx.Timeout(connect=seconds.connect_s, read=read, write=seconds.write_s, pool=seconds.pool_s)
