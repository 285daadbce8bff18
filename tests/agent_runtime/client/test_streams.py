"""The same events and items are parsed however the network splits an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime import ApplyRequest, Client, Phase, Tokens
from agent_runtime.client.responses import LineReader
from agent_runtime.request_context import Piece
from agent_runtime.serialization import result_to_json
from agent_runtime.testing import merged_result

RESULT = merged_result("a\n", "b\u2028é\x85\x1e\n", "a.py")
TOKENS = Tokens((Piece("é\u2028\u2029\r\n\x0b😀", "copied"), Piece("\x1c\x85", "generated")), 2)
JSON = st.dictionaries(st.text(), st.text() | st.integers() | st.none())


class Pieces(httpx.SyncByteStream):
    """Bytes, split at random positions."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
        self._pieces = [data[first:last] for first, last in pairwise(places)]

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


@given(values=st.lists(JSON), cuts=st.lists(st.integers(0, 10_000), max_size=20), ascii_only=st.booleans())
def test_lines_are_the_same_however_they_are_cut(values: list[Any], cuts: list[int], ascii_only: bool) -> None:
    data = b"".join(
        json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") + b"\n" for value in values
    )
    reader: LineReader[Any] = LineReader(lambda line: line, len(values), "url")
    assert [item for piece in Pieces(data, cuts) for item in reader.parse(piece)] == values
    reader.check_ended()


@given(cuts=st.lists(st.integers(0, 10_000), max_size=30), line_end=st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_they_are_cut(cuts: list[int], line_end: str) -> None:
    tokens = {"region": 2, "pieces": [{"text": piece.text, "origin": piece.origin} for piece in TOKENS.pieces]}
    named = [("phase", {"phase": "decode"}), ("tokens", tokens), ("result", result_to_json(RESULT))]
    lines = [
        line
        for name, data in named
        for line in (": beat", "", f"event: {name}", f"data: {json.dumps(data, ensure_ascii=False)}", "")
    ]
    text = "".join(line + line_end for line in lines)
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, stream=Pieces(text.encode(), cuts)))
    with Client("http://fake", transport=transport) as client:
        assert [*client.stream(ApplyRequest(b"", "edit"))] == [Phase("decode"), TOKENS, RESULT]
