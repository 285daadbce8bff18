"""Answers of applies and sessions: encoded, stored by Idempotency-Key, streamed in parts.

Each part waits until the connection has room for it. `uvicorn_server.py` cuts off a client that does not read.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from io import BytesIO
from time import monotonic
from typing import Annotated, Any

from cachetools import TTLCache
from fastapi import Header, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from agent_runtime.errors import BadRequest, HunkError, KeyReused
from agent_runtime.serialization import problem_to_json, result_to_json
from agent_runtime.server.problems import PROBLEM_MEDIA, make_problem_headers
from agent_runtime.types import ApplyResult

TEMPORARY = frozenset({429, 499})
"""Statuses of temporary refusals: the same request may succeed later."""

LARGE_CHARACTERS = 1 << 20
BLOCK_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """A status and its JSON: a result, or from 400 on a problem."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_problem(self) -> bool:
        return self.status >= 400

    @property
    def is_final(self) -> bool:
        """Whether the same request would get the same answer again."""
        return self.status < 500 and self.status not in TEMPORARY

    def to_response(self) -> Response:
        """Return the answer as an HTTP response."""
        media = PROBLEM_MEDIA if self.is_problem else "application/json"
        return Response(self.content, self.status, dict(self.headers), media_type=media)


def encode_result(result: ApplyResult) -> EncodedAnswer:
    """Encode the result of an apply."""
    answer = result_to_json(result)
    num_characters = sum(len(file.merged) + len(file.diff) for file in result.files)
    return EncodedAnswer(200, to_json(answer) if num_characters <= LARGE_CHARACTERS else encode_in_steps(answer))


def encode_in_steps(value: Any) -> bytes:
    """Return the same text as `to_json`, which would hold the GIL for 2 ms per megabyte."""
    written = BytesIO()
    _write(value, written)
    return written.getvalue()


def _write(value: Any, written: BytesIO) -> None:
    match value:
        case dict():
            for number, (name, each) in enumerate(value.items()):
                written.write((b"," if number else b"{") + to_json(name) + b":")
                _write(each, written)
            written.write(b"}" if value else b"{}")
        case list() | tuple():
            for number, each in enumerate(value):
                written.write(b"," if number else b"[")
                _write(each, written)
            written.write(b"]" if value else b"[]")
        case str() if len(value) > BLOCK_CHARACTERS:
            written.write(b'"')
            for start in range(0, len(value), BLOCK_CHARACTERS):
                written.write(to_json(value[start : start + BLOCK_CHARACTERS])[1:-1])
            written.write(b'"')
        case _:
            written.write(to_json(value))


def encode_problem(fault: HunkError) -> EncodedAnswer:
    """Encode the problem of a failed request."""
    content = json.dumps(problem_to_json(fault))  # in ASCII: what was sent may hold a lone surrogate, and is quoted
    return EncodedAnswer(fault.http_status, content.encode(), make_problem_headers(fault))


CHUNK_BYTES = 1 << 16
"""Bytes given to the connection at once: it holds them until the client has read them."""

UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that tell proxies to pass each part on at once."""


class StreamedResponse(StreamingResponse):
    """A response in parts. `on_end` is called when all is sent or the client has disconnected."""

    def __init__(
        self, parts: AsyncIterator[bytes], on_end: Callable[[], None], media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(_iterate_chunks(parts), headers={**UNBUFFERED, **headers}, media_type=media_type)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts as they come."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _iterate_chunks(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        for start in range(0, len(part), CHUNK_BYTES):
            yield part[start : start + CHUNK_BYTES]


KEEP_SECONDS = 3600.0
KEEP_BYTES = 32 << 20
"""Bytes of one tenant's answers; the least recently used are evicted, larger answers are not kept."""

OVERHEAD_BYTES = 1024
"""Bytes counted for each answer in addition to its content, which bounds their number too."""

REPLAYED_HEADER = "Idempotent-Replayed"
"""Header of an answer from the store."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="1 to 255 visible ASCII characters, with or without quotes. The same request with the same key "
        "gets the first answer again, and nothing is done twice; another request gets `idempotency-key-reused`.",
    ),
]

_KEY = re.compile(r"[\x21\x23-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class _StoredAnswer:
    """A stored answer, and the hash of its request."""

    fingerprint: bytes
    answer: EncodedAnswer


@dataclass(frozen=True, slots=True)
class _Running:
    """A running request; `ended` wakes the requests that wait for its answer."""

    fingerprint: bytes
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class IdempotencyStore:
    """Stores answers by tenant and Idempotency-Key for a time; used in the event loop only.

    As in the IETF draft (draft-ietf-httpapi-idempotency-key-header), with one difference: a request that comes while
    the first is running waits for its answer instead of being refused. Results and permanent refusals are stored.
    Temporary failures (5xx, 429, a disconnected client) are not: the same request with the same key runs again.
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
        """Do the work, or return its stored answer.

        Raises BadRequest for a malformed key, KeyReused for a key that came with another request.
        """
        if key is None:
            return await work()
        key, fingerprint = _parse_key(key), sha256(request).digest()
        place = (tenant, key)
        while (running := self._running.get(place)) is not None:
            _check_fingerprint(running.fingerprint, fingerprint)
            await running.ended.wait()  # if it failed, the first to wake runs
        kept = self._get_answers(tenant).get(key)
        if kept is not None:
            _check_fingerprint(kept.fingerprint, fingerprint)
            return replace(kept.answer, headers={**kept.answer.headers, REPLAYED_HEADER: "true"})
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

    def _get_answers(self, tenant: str) -> TTLCache[str, _StoredAnswer]:
        if tenant not in self._kept:
            self._kept[tenant] = TTLCache(self._max_bytes, self._seconds, self._clock, _count_bytes)
        return self._kept[tenant]

    def _keep(self, tenant: str, key: str, kept: _StoredAnswer) -> None:
        if _count_bytes(kept) <= self._max_bytes:
            self._get_answers(tenant)[key] = kept


def _count_bytes(kept: _StoredAnswer) -> int:
    return len(kept.answer.content) + OVERHEAD_BYTES


def _parse_key(key: str) -> str:
    """Return a key without its quotes, which the draft requires and many clients omit."""
    bare = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    if not _KEY.fullmatch(bare):
        raise BadRequest("the header Idempotency-Key is not 1 to 255 visible ASCII characters", field="Idempotency-Key")
    return bare


def _check_fingerprint(known: bytes, fingerprint: bytes) -> None:
    if known != fingerprint:
        raise KeyReused(
            "this Idempotency-Key came before with another body; make a new key for each new request",
            field="Idempotency-Key",
        )
