"""Reads and parses request bodies within limits of size, time, structure and memory."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from io import BytesIO
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

import numpy as np
from anyio.to_thread import run_sync
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_runtime.errors import BadRequest, HunkError, RequestTooSlow, TooLarge, TooManyRequests
from agent_runtime.files import MAX_FILE_BYTES
from agent_runtime.quotas import Shares
from agent_runtime.server.auth import get_flow
from agent_runtime.server.middleware import Drain
from agent_runtime.server.problems import make_problem_response

MAX_DEPTH = 64
"""Maximum nesting depth of arrays and objects. Python's parser bears some hundreds, later code fewer."""

MAX_VALUES = 200_000
"""Maximum number of values in one body; a batch of 256 requests with 100 files each has fewer. The parser holds the
GIL.
"""

BLOCK_BYTES = 1 << 16
"""Bytes scanned at once, in some 0.1 ms: other threads run between two blocks."""

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_structure(text: bytes, max_depth: int = MAX_DEPTH, max_values: int = MAX_VALUES) -> None:
    """Raise BadRequest if a JSON text (UTF-8) is nested too deeply, or has too many values or a NUL byte.

    Brackets and commas in strings do not count. A text that is not JSON may pass or not; the parser can handle it
    either way. The time is linear in the length of any text.
    """
    if b"\0" in text:
        raise BadRequest("the body holds a NUL byte; send JSON as UTF-8")
    num_openings = text.count(b"[") + text.count(b"{")
    if num_openings <= max_depth and num_openings + text.count(b",") < max_values:
        return
    depth, num_values, num_quotes = 0, 1, 0
    for bare, quotes in _read_outside_strings(text):
        brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
        num_values += bare.count(b",") + bare.count(b"[") + bare.count(b"{")
        num_quotes += quotes
        if num_values > max_values or num_quotes > 4 * max_values:  # each may have a key
            raise BadRequest(f"the body holds more than {max_values} values")
        if not len(brackets):
            continue
        depths = depth + np.cumsum(_STEPS[brackets], dtype=np.int64)
        if depths.max() > max_depth:
            raise BadRequest(f"the body is nested deeper than {max_depth} arrays and objects")
        depth = int(depths[-1])


def _read_outside_strings(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes outside of strings, block by block, each with its number of quotes that begin or end a string.

    A quote after an odd number of backslashes is part of a string. So pairs of backslashes are removed first, then
    quotes with a backslash before them; each quote that is left begins or ends a string.
    """
    is_inside, cut_off = False, b""
    for start in range(0, len(text), BLOCK_BYTES):
        block = (cut_off + text[start : start + BLOCK_BYTES]).replace(b"\\\\", b"")
        cut_off = block[-1:] if block.endswith(b"\\") else b""  # the escaped character is in the next block
        parts = block[: len(block) - len(cut_off)].replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_inside::2]), len(parts) - 1
        is_inside ^= len(parts) % 2 == 0


BODY_SECONDS = 60.0
"""Maximum seconds for receiving a body: enough for the largest body at 10 Mbit/s."""

WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
"""Methods with a body. Routes that need no token are read-only, so no body is read from a sender without one."""

MAX_HELD_BYTES = 512 << 20
"""Maximum bytes of the bodies of all running requests; each flow has a share (`Shares`)."""


class BodyLimitMiddleware:
    """Middleware that reads bodies; it answers 413 to one over `max_bytes`, 408 to a slow one, 400 to a malformed one.

    It answers 429 if the sender's bodies take more than its share of the memory. It must be inside the middleware that
    finds the principal, so that no body is read from a sender without access.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        seconds: float = BODY_SECONDS,
        max_held_bytes: int = MAX_HELD_BYTES,
        drain: Drain | None = None,
    ) -> None:
        self._app = app
        self._drain = drain or Drain()
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._held = Shares(max_held_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        if scope["method"] not in WITH_BODY:  # its body has no meaning and is not read
            await self._app(scope, _make_replay(b"", receive), _make_closing_send(send))
            return
        held = BytesIO()  # grows without copying what it holds, which a list of pieces could not be joined without
        holder = get_flow(scope)
        try:
            try:
                if not await self._read(scope, receive, holder, held):
                    return
                body = held.getvalue()
                if len(body) > BLOCK_BYTES:
                    await run_sync(check_structure, body)
                else:
                    check_structure(body)
            except HunkError as fault:
                response = make_problem_response(fault)
                response.headers["Connection"] = "close"  # the rest of the body is not read
                await response(scope, receive, send)
                return
            await self._app(scope, _make_replay(body, receive), send)
        finally:
            self._held.give_back(holder, held.tell())

    async def _read(self, scope: Scope, receive: Receive, holder: str, held: BytesIO) -> bool:
        """Return whether the body is complete; false if the sender has disconnected. Raises the refusal."""
        announced = Headers(scope=scope).get("content-length", "")
        num_bytes = 0
        self._check(int(announced) if announced.isdigit() else 0)
        try:
            async with asyncio.timeout(self._seconds) as wait:
                with self._drain.track_wait(wait):
                    while (message := await receive())["type"] != "http.disconnect":
                        chunk = message.get("body", b"")
                        num_bytes += len(chunk)
                        self._check(num_bytes)
                        if not self._held.take(holder, len(chunk)):
                            raise TooManyRequests("too many large requests of yours are being answered at once")
                        held.write(chunk)
                        if not message.get("more_body", False):
                            return True
                    return False
        except TimeoutError:
            if (fault := self._drain.find_fault()) is not None:
                raise fault from None
            raise RequestTooSlow(f"the request's body did not come within {self._seconds:g} seconds") from None

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise TooLarge(f"the request's body is over the limit of {self._max_bytes / 1e6:.0f} MB")


def _make_closing_send(send: Send) -> Send:
    """Return a `send` that closes the connection after the answer, since the rest of the body is not read."""

    async def send_and_close(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return send_and_close


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _make_replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body first, and then later messages, such as the disconnect."""
    is_new = True

    async def receive_again() -> Message:
        nonlocal is_new
        if is_new:
            is_new = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return receive_again


LARGE_BYTES = 1 << 20
"""Larger bodies are parsed in steps; `json.loads` takes some 5 ms for this size."""

MAX_CHARACTERS = MAX_FILE_BYTES
"""Maximum characters of one string: those of the largest file; other strings are shorter."""

MAX_BARE_BYTES = 16 << 20
"""Maximum bytes outside of strings, with a run of white space counted as one: 80 for each value."""

_PIECE = re.compile(
    rb'(?:[^"\\]{1,1024}+'
    rb"|\\u[dD][89abAB]..\\u[dD][c-fC-F].."  # a surrogate pair is one character
    rb"|\\u...."
    rb"|\\[^u]){0,256}+",
    re.DOTALL,
)
"""The next part of a string that can be decoded alone, up to the quote that ends it."""

_SPACE = re.compile(rb"[ \t\r\n]+")


class JsonRequest(Request):
    """A request whose body is stored once, and parsed in a thread if it is large."""

    async def body(self) -> bytes:
        """Return the body, without a copy if it came in one piece."""
        if not hasattr(self, "_body"):
            self._body = b"".join([chunk async for chunk in self.stream() if chunk])
        return self._body

    async def json(self) -> Any:
        """Return the parsed body; raises what `json.loads` raises, and TooLarge or BadRequest as `parse_json`."""
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = json.loads(body) if len(body) <= LARGE_BYTES else await run_sync(parse_json, body)
        return self._json


class JsonRoute(APIRoute):
    """A route with `JsonRequest` as its request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, which gets a `JsonRequest`."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def parse_json(text: bytes) -> Any:
    """Parse a JSON text that has passed `check_structure`; returns and raises what `json.loads` does.

    Also raises TooLarge for a string of more than MAX_CHARACTERS, and BadRequest for more than MAX_BARE_BYTES outside
    of strings. Strings are decoded piece by piece. The parser then gets a text with their numbers in their place:
    `{"a": "long"}` is parsed as `{"0": "1"}`.
    """
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):  # UTF-16, in which no JSON is without NUL bytes
        raise json.JSONDecodeError("Expecting value", "", 0)
    _check_utf8(text)
    at = 3 if text.startswith(b"\xef\xbb\xbf") else 0
    bare, strings = bytearray(), list[str]()
    while (quote := text.find(b'"', at)) >= 0 and len(strings) <= 2 * MAX_VALUES:  # with more it is no JSON
        _add_bare(bare, text, at, quote)
        try:
            string, at = _read_string(text, quote + 1)
        except json.JSONDecodeError as fault:
            raise _choose_fault(bare, fault) from None
        bare += b'"%d"' % len(strings)
        strings.append(string)
    _add_bare(bare, text, at, len(text) if quote < 0 else quote + 1)
    return _restore_strings(_parse(bare), strings)


def _check_utf8(text: bytes) -> None:
    """Raise UnicodeDecodeError if a text is not UTF-8; surrogates are allowed, as in `json.loads`."""
    start = 0
    while start < len(text):
        end = _find_character_end(text, min(start + BLOCK_BYTES, len(text)))
        try:
            text[start:end].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            error.start += start
            raise
        start = end


def _find_character_end(text: bytes, end: int) -> int:
    """Return the first index from `end` on that does not split a character."""
    return next((at for at in range(end, min(end + 3, len(text))) if text[at] & 0xC0 != 0x80), min(end + 3, len(text)))


def _add_bare(bare: bytearray, text: bytes, start: int, end: int) -> None:
    """Append bytes outside of strings to `bare`, each run of white space as one space."""
    for at in range(start, end, BLOCK_BYTES):
        bare += _SPACE.sub(b" ", text[at : min(at + BLOCK_BYTES, end)])
        if len(bare) > MAX_BARE_BYTES:
            raise BadRequest(f"the body holds more than {MAX_BARE_BYTES >> 20} MB outside of its strings")


def _read_string(text: bytes, at: int) -> tuple[str, int]:
    """Return the string whose first character is at `at`, and the index after it; raises JSONDecodeError."""
    pieces, num_characters = list[str](), 0
    while True:
        end = _find_character_end(text, _PIECE.match(text, at).end())  # type: ignore[union-attr]
        is_last = text[end : end + 1] == b'"'
        if end == at and not is_last:
            end = len(text)  # it ends here, in an escape or without a quote: the scanner says which
        closed = text[at:end] + b'"' * (end < len(text))
        pieces.append(scanstring(closed.decode("utf-8", "surrogatepass"), 0, True)[0])
        num_characters += len(pieces[-1])
        if num_characters > MAX_CHARACTERS:
            raise TooLarge(f"the body holds a string of more than {MAX_CHARACTERS / 1e6:.1f} million characters")
        if is_last:
            return "".join(pieces), end + 1
        at = end


def _choose_fault(bare: bytearray, of_string: json.JSONDecodeError) -> json.JSONDecodeError:
    """Return the error of a string, or an earlier error in the text before it."""
    try:
        _parse(bare + b'"')
    except json.JSONDecodeError as fault:
        return of_string if fault.msg.startswith("Unterminated string") else fault
    raise AssertionError("a string without an end was parsed")


def _parse(bare: bytearray) -> Any:
    return json.JSONDecoder().decode(bare.decode("utf-8", "surrogatepass"))


def _restore_strings(value: Any, strings: list[str]) -> Any:
    """Replace the numbers in a value by their strings."""
    if isinstance(value, str):
        return strings[int(value)]
    if isinstance(value, list):
        return [_restore_strings(each, strings) for each in value]
    if isinstance(value, dict):
        return {strings[int(name)]: _restore_strings(each, strings) for name, each in value.items()}
    return value
