"""Sends an answer while it comes about.

Each part waits until the connection has room for it. A client that does not read is cut off by `connection.py`, and has
left then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

CHUNK_BYTES = 1 << 16
"""What is handed to the connection at once: it is held in full until the client has taken it."""

UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Proxies between have to hand on each part as it comes."""


class Streamed(StreamingResponse):
    """A response in parts. `on_end` is called when it is over, whether all was sent or the client has left."""

    def __init__(
        self, parts: AsyncIterator[bytes], on_end: Callable[[], None], media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(_in_chunks(parts), headers={**UNBUFFERED, **headers}, media_type=media_type)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts as they come."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _in_chunks(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        for start in range(0, len(part), CHUNK_BYTES):
            yield part[start : start + CHUNK_BYTES]
