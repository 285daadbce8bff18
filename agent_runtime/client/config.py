"""Address, credentials, timeouts and retries of a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from agent_runtime.errors import BadRequest

DEFAULT_URL = "http://127.0.0.1:8311"
"""Where `hunk serve` listens if nothing else is said."""

MAX_CONNECTIONS = 256
"""At one time; further calls of this client wait for one of them."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds, None for no limit. What runs into one raises NoConnection.

    connect_s: until the service takes the connection. read_s: the longest silence while an answer is awaited;
    work_s is that of calls which merge an edit or ask the model: a model may take minutes over a long file, and closing
    ends the work. write_s: the longest standstill while the request is sent. pool_s: the wait for one of this client's
    own connections, of which there are 256.
    """

    connect_s: float | None = 5.0
    read_s: float | None = 30.0
    work_s: float | None = None
    write_s: float | None = 30.0
    pool_s: float | None = None


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call is sent again that may be sent twice, and how long before.

    The wait is drawn between 0 and `first_s` doubled for each attempt, at most `longest_s` (full jitter: clients that
    failed together do not come back together). It comes on top of the seconds that the service asks for (Retry-After);
    where these are more than `longest_retry_after_s` the fault is raised instead.
    """

    times: int = 2
    first_s: float = 0.25
    longest_s: float = 8.0
    longest_retry_after_s: float = 60.0

    def __post_init__(self) -> None:
        if self.times < 0 or self.first_s < 0 or self.longest_s < 0 or self.longest_retry_after_s < 0:
            raise BadRequest(f"retries count from 0 and wait for 0 or more seconds, not {self}", field="retries")


NO_RETRIES = Retries(times=0)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """One service and how it is asked. The token is not shown where the settings are printed."""

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
        """What is given, and `HUNK_URL` and `HUNK_TOKEN` where that is None; raises BadRequest on a bad value."""
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
