"""One result as a response, a server-sent event or a line.

Each part waits until the connection has room for it. A client that does not read is cut off by `uvicorn_server.py`,
and has left then.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from agent_runtime.errors import HunkError
from agent_runtime.serialization import problem_to_json, result_to_json
from agent_runtime.server.problems import PROBLEM_MEDIA, headers_of
from agent_runtime.types import ApplyResult

PASSING = frozenset({429, 499})
"""Refusals that say nothing about the request: the same one may be answered a little later."""


LARGE_CHARACTERS = 1 << 20
BLOCK_CHARACTERS = 1 << 16


@dataclass(frozen=True, slots=True)
class EncodedAnswer:
    """A status and the JSON that goes with it: a result, or a problem from 400 on."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_problem(self) -> bool:
        """Whether the request has failed."""
        return self.status >= 400

    @property
    def is_final(self) -> bool:
        """Whether the same request would be answered in the same way again."""
        return self.status < 500 and self.status not in PASSING

    def to_response(self) -> Response:
        """Return the answer as an HTTP response."""
        media = PROBLEM_MEDIA if self.is_problem else "application/json"
        return Response(self.content, self.status, dict(self.headers), media_type=media)


def encode_result(result: ApplyResult) -> EncodedAnswer:
    """The answer to an apply that has a result."""
    answer = result_to_json(result)
    num_characters = sum(len(file.merged) + len(file.diff) for file in result.files)
    return EncodedAnswer(200, to_json(answer) if num_characters <= LARGE_CHARACTERS else json_in_steps(answer))


def json_in_steps(value: Any) -> bytes:
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
    """The answer to a request that has failed."""
    content = json.dumps(problem_to_json(fault))  # in ASCII: what was sent may hold a lone surrogate, and is quoted
    return EncodedAnswer(fault.http_status, content.encode(), headers_of(fault))


CHUNK_BYTES = 1 << 16
"""Bytes given to the connection at once: it holds them until the client has read them."""

UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Proxies between have to hand on each part as it comes."""


class StreamedResponse(StreamingResponse):
    """A response in parts. `on_end` is called when it is over, whether all was sent or the client has left."""

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
