"""Address, credentials, timeouts and retries of a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from agent_runtime.errors import BadRequest

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
