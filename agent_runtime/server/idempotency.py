"""Answers a request that comes again with the answer of the first time, by its Idempotency-Key.

As in the IETF draft (draft-ietf-httpapi-idempotency-key-header), but who comes while the first is still being worked on
waits for its answer instead of being refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from time import monotonic
from typing import Annotated

from cachetools import TTLCache
from fastapi import Header

from agent_runtime.errors import BadRequest, KeyReused
from agent_runtime.server.responses import EncodedAnswer

KEEP_SECONDS = 3600.0
KEEP_BYTES = 32 << 20
"""Bytes of one tenant's answers; the least recently used are evicted, larger answers are not kept."""

BYTES_BESIDE = 1024
"""Bytes counted for each answer in addition to its content, which bounds their number too."""

REPLAYED = "Idempotent-Replayed"
"""The header of an answer that was kept."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="1 to 255 visible ASCII characters, with or without quotes. The same request with the same key is "
        "answered as the first time, and nothing is done again; another one answers `idempotency-key-reused`.",
    ),
]

_KEY = re.compile(r"[\x21\x23-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class _StoredAnswer:
    """An answer, and the request that it is to."""

    fingerprint: bytes
    answer: EncodedAnswer


@dataclass(frozen=True, slots=True)
class _Running:
    """A request that is being worked on, and those that wait for its answer."""

    fingerprint: bytes
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class IdempotencyStore:
    """Answers by tenant and key, for a while; used in the event loop only.

    Kept are results and the refusals that lie with the request. What failed for the moment (5xx, 429, a client that
    left) is not: the same request with the same key tries again.
    """

    def __init__(
        self, *, seconds: float = KEEP_SECONDS, max_bytes: int = KEEP_BYTES, clock: Callable[[], float] = monotonic
    ) -> None:
        self._seconds, self._max_bytes, self._clock = seconds, max_bytes, clock
        self._kept: dict[str, TTLCache[str, _StoredAnswer]] = {}
        self._running: dict[tuple[str, str], _Running] = {}

    async def run_once(
        self, tenant: str, key: str | None, request: bytes, work: Callable[[], Awaitable[EncodedAnswer]]
    ) -> EncodedAnswer:
        """Do the work, or give the answer that it had the first time.

        Raises BadRequest where the key cannot be one, KeyReused where it came with another request.
        """
        if key is None:
            return await work()
        key, fingerprint = _parse_key(key), sha256(request).digest()
        place = (tenant, key)
        while (running := self._running.get(place)) is not None:
            _compare(running.fingerprint, fingerprint)
            await running.ended.wait()  # if it failed, the first that wakes tries again
        kept = self._answers_of(tenant).get(key)
        if kept is not None:
            _compare(kept.fingerprint, fingerprint)
            return replace(kept.answer, headers={**kept.answer.headers, REPLAYED: "true"})
        self._running[place] = running = _Running(fingerprint)
        try:
            answer = await work()
            if answer.is_final:
                self._keep(tenant, key, _StoredAnswer(fingerprint, answer))
            return answer
        finally:
            del self._running[place]
            running.ended.set()

    def check_integrity(self) -> None:
        """Assert that the store is within its bounds, and that no request waits for one that has ended."""
        for kept in self._kept.values():
            assert kept.currsize <= self._max_bytes
        assert not any(running.ended.is_set() for running in self._running.values())

    def _answers_of(self, tenant: str) -> TTLCache[str, _StoredAnswer]:
        if tenant not in self._kept:
            self._kept[tenant] = TTLCache(self._max_bytes, self._seconds, self._clock, _size)
        return self._kept[tenant]

    def _keep(self, tenant: str, key: str, kept: _StoredAnswer) -> None:
        if _size(kept) <= self._max_bytes:
            self._answers_of(tenant)[key] = kept


def _size(kept: _StoredAnswer) -> int:
    return len(kept.answer.content) + BYTES_BESIDE


def _parse_key(key: str) -> str:
    """The key without the quotes that the draft wants and many clients leave out."""
    bare = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    if not _KEY.fullmatch(bare):
        raise BadRequest("the header Idempotency-Key is not 1 to 255 visible ASCII characters", field="Idempotency-Key")
    return bare


def _compare(known: bytes, fingerprint: bytes) -> None:
    if known != fingerprint:
        raise KeyReused(
            "this Idempotency-Key came before with another body; make a new key for each new request",
            field="Idempotency-Key",
        )
