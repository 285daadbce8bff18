"""Parses large JSON bodies in steps of a few milliseconds, in a thread: while the parser runs, no other thread does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from anyio.to_thread import run_sync
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from agent_runtime.errors import BadRequest, TooLarge
from agent_runtime.files.limits import MAX_FILE_BYTES
from agent_runtime.http.structure import BLOCK_BYTES, MAX_VALUES

LARGE_BYTES = 1 << 20
"""Above this a body is parsed in steps; `json.loads` takes some 5 ms for so much."""

MAX_CHARACTERS = MAX_FILE_BYTES
"""Of one string. A file has no more, in whatever encoding; nothing else that is sent may be larger."""

MAX_BARE_BYTES = 16 << 20
"""Of what stands outside of strings, white space counted once: 80 for each of the values that there may be."""

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
    """A request whose body is held once, and parsed in a thread where it is large."""

    async def body(self) -> bytes:
        """The body; not copied where it came in one piece."""
        if not hasattr(self, "_body"):
            self._body = b"".join([chunk async for chunk in self.stream() if chunk])
        return self._body

    async def json(self) -> Any:
        """The body's value; raises what `json.loads` raises, and TooLarge or BadRequest as `parse_json`."""
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = json.loads(body) if len(body) <= LARGE_BYTES else await run_sync(parse_json, body)
        return self._json


class JsonRoute(APIRoute):
    """A route whose body is read as `JsonRequest` does."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, with our kind of request."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def parse_json(text: bytes) -> Any:
    """The value of a JSON text that `check_structure` lets pass, as `json.loads` gives it; raises what that raises.

    Raises TooLarge for a string of more than MAX_CHARACTERS, and BadRequest where more than MAX_BARE_BYTES stand
    outside of strings. Strings are decoded piece by piece; the parser then runs on a text that holds their numbers:
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
            raise _first_fault(bare, fault) from None
        bare += b'"%d"' % len(strings)
        strings.append(string)
    _add_bare(bare, text, at, len(text) if quote < 0 else quote + 1)
    return _with_strings(_parse(bare), strings)


def _check_utf8(text: bytes) -> None:
    """Raise UnicodeDecodeError where it is no UTF-8; surrogates may be in it, as `json.loads` allows."""
    start = 0
    while start < len(text):
        end = _character_end(text, min(start + BLOCK_BYTES, len(text)))
        try:
            text[start:end].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            error.start += start
            raise
        start = end


def _character_end(text: bytes, end: int) -> int:
    """The first place from `end` on where no character is cut in two."""
    return next((at for at in range(end, min(end + 3, len(text))) if text[at] & 0xC0 != 0x80), min(end + 3, len(text)))


def _add_bare(bare: bytearray, text: bytes, start: int, end: int) -> None:
    """Add what stands outside of strings, each run of white space as one blank."""
    for at in range(start, end, BLOCK_BYTES):
        bare += _SPACE.sub(b" ", text[at : min(at + BLOCK_BYTES, end)])
        if len(bare) > MAX_BARE_BYTES:
            raise BadRequest(f"the body holds more than {MAX_BARE_BYTES >> 20} MB outside of its strings")


def _read_string(text: bytes, at: int) -> tuple[str, int]:
    """The string whose first character is at `at`, and where the text goes on behind it; raises JSONDecodeError."""
    pieces, num_characters = list[str](), 0
    while True:
        end = _character_end(text, _PIECE.match(text, at).end())  # type: ignore[union-attr]
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


def _first_fault(bare: bytearray, of_string: json.JSONDecodeError) -> json.JSONDecodeError:
    """The fault of a string, unless what stands before it has one of its own."""
    try:
        _parse(bare + b'"')
    except json.JSONDecodeError as fault:
        return of_string if fault.msg.startswith("Unterminated string") else fault
    raise AssertionError("a string without an end was parsed")


def _parse(bare: bytearray) -> Any:
    return json.JSONDecoder().decode(bare.decode("utf-8", "surrogatepass"))


def _with_strings(value: Any, strings: list[str]) -> Any:
    """A value with the strings in place of their numbers."""
    if isinstance(value, str):
        return strings[int(value)]
    if isinstance(value, list):
        return [_with_strings(each, strings) for each in value]
    if isinstance(value, dict):
        return {strings[int(name)]: _with_strings(each, strings) for name, each in value.items()}
    return value
