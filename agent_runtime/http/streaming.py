"""Sends an answer while it comes about, and gives up on clients that leave or do not read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from anyio import fail_after
from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

STALL_SECONDS = 60.0
"""How long a client may take no byte of what is sent to it: what it holds up is freed then."""

CHUNK_BYTES = 1 << 16
"""What is handed to the connection at once: it is held in full until the client has taken it."""

UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Proxies between have to hand on each part as it comes."""


class Streamed(StreamingResponse):
    """A response in parts. `on_end` is called when it is over, whether all was sent, the client left or it stalled."""

    def __init__(
        self, parts: AsyncIterator[bytes], on_end: Callable[[], None], media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(_in_chunks(parts), headers={**UNBUFFERED, **headers}, media_type=media_type)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the parts as they come."""

        async def send_in_time(message: Message) -> None:
            with fail_after(STALL_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, send_in_time)
        except TimeoutError:
            return  # without the end of the body, on which the server closes the connection
        finally:
            self._on_end()


async def _in_chunks(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for part in parts:
        for start in range(0, len(part), CHUNK_BYTES):
            yield part[start : start + CHUNK_BYTES]
