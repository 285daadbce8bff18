"""Large bodies are parsed in steps: what comes of it is what `json.loads` gives or raises."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from agent_runtime.errors import BadRequest, TooLarge
from agent_runtime.server import request_body
from agent_runtime.server.request_body import LARGE_BYTES, JsonRequest, parse_json
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving

LONG = 3000
"""Of characters or escapes: more than are decoded at once."""

TEXTS = [
    b"",
    b" ",
    b"{}",
    b"[]",
    b'""',
    b'"',
    b"1",
    b" 1 2",
    b"nul",
    b"-",
    b"NaN",
    b"[NaN, Infinity, -Infinity, -0.0, 1e400, 1E-400]",
    b"123456789012345678901234567890",
    b"[" + b"1" * 5000 + b"]",
    b"1." + b"1" * 5000,
    b'{"a": 1, "a": 2, "b": 3, "a": 4}',
    b'{"a": 1, "\\u0061": 2}',
    b'{"0": "1", "1": "0"}',
    b'{"a": 1,}',
    b"[1,]",
    b'{"a" 1}',
    b"{1: 2}",
    b'{"a": "b" "c"}',
    b'{"a": "b"}}',
    b'{"a": "b',
    b'{"a": "b\\',
    b'{"a": "\\u12',
    b'{"a": "\\u12"}',
    b'{"a": "\\u12", "b": "c"}',
    b'{"a": "\\x"}',
    b'{"a": "\\ud83d\\ude"}',
    b'{"a": "\\ud83d\\ude00"}',
    b'{"a": "\\ud83d"}',
    b'"\\ud83d',
    b'"\\ud83d\\ude00',
    b'{"a": "\\ude00\\ud83d\\ud83d\\ude00\\uD83Dx"}',
    b'{"a": "\n"}',
    b'{"a": "\\\\\\"\\/\\b\\f\\n\\r\\t"}',
    b'{"a": 1 "b": "\n"}',
    b'{"a": "\n" 1}',
    b'\xef\xbb\xbf{"a": "b"}',
    b'\xef\xbb\xbf\xef\xbb\xbf{"a": "b"}',
    b'\xff\xfe{"a": "b"}',
    b'{"a": "\xff"}',
    b'{"a": "\xe6\xbc"}',
    b'{"a": "\xed\xa0\xbd\xed\xb8\x80"}',
    b'{"a": "\xed\xa0\xbd\\ude00"}',
    b'{"a": "' + b"\x80" * LONG,
    '{"ä": "漢😀\u2028"} '.encode(),
    '{"a": ä}'.encode(),
    b'{"a": \t\r\n "b" \n}\n',
    b"[" + b" " * LONG + b"1" + b"\n" * LONG + b"]",
    b'{"' + b"k" * 400_000 + b'": 1}',
    b'["' + b"\\u0001" * LONG + b'"]',
    b'["' + b"\\ud83d\\ude00" * LONG + b'"]',
    b'["' + b"\\ud83d" * LONG + b"\\ude00" * LONG + b'"]',
    b'["x' + b"\\ud83d\\ude00" * LONG + b'"]',
    b'["' + b"\\\\" * LONG + b'"]',
    b'["' + b"\\\\" * LONG + b'\\"]',
    b'["' + "漢".encode() * 200_000 + b'"]',
    b'["x' + "😀".encode() * 200_000 + b'"]',
    b'["' + b"x" * 400_000 + b"\\q" + b'"]',
    b'["' + b"x" * 400_000 + b"\n" + b'"]',
    b'["' + b"x" * 400_000 + b"\xff" + b'"]',
]

FRAGMENTS = [
    *('"', "\\", "\\u", "\\ud83d", "\\ude00", "d83d", "\\n", "{", "}", "[", "]", ",", ":", " ", "1", "-", "."),
    *("x", "ä", "漢", "😀", "\ud83d", "\ude00", "\n", '"a":', '"b"', '{"c": [1, "'),
]


def outcome(parse: Any, text: bytes) -> tuple[str, str]:
    """The value with its order, types and NaN, or the error with what a client is told of it."""
    try:
        return "value", repr(parse(text))
    except json.JSONDecodeError as error:
        return "no JSON", error.msg
    except UnicodeDecodeError as error:
        return "no UTF-8", str(error.start)
    except ValueError as error:
        return "refused", str(error)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:40]))
def test_a_text_is_parsed_as_by_the_standard_library(text: bytes) -> None:
    assert outcome(parse_json, text) == outcome(json.loads, text)


@given(st.lists(st.tuples(st.sampled_from(FRAGMENTS), st.sampled_from([1, 1, 1, 2, 255, 256, 1023, 1025])), max_size=8))
def test_what_is_made_of_fragments_is_parsed_as_by_the_standard_library(parts: list[tuple[str, int]]) -> None:
    text = "".join(part * min(count, 30 if part[0] in "[{" else count) for part, count in parts)
    sent = text.encode("utf-8", "surrogatepass")
    assert outcome(parse_json, sent) == outcome(json.loads, sent)


LONG_TEXTS = st.text(min_size=1).map(lambda text: text * LONG)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.text(min_size=1).map(lambda text: text * LONG),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=6,
    ),
    st.booleans(),
)
def test_a_value_comes_back(value: Any, ascii_only: bool) -> None:
    sent = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert repr(parse_json(sent)) == repr(value)


def test_a_string_that_is_larger_than_any_file_is_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_CHARACTERS", 100_000)
    assert parse_json(b'["' + b"\\u0001" * 100_000 + b'"]') == ["\x01" * 100_000]
    with pytest.raises(TooLarge, match=r"more than 0\.1 million characters"):
        parse_json(b'["' + b"x" * 100_001 + b'"]')


def test_much_that_is_no_string_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MAX_BARE_BYTES", 1 << 20)
    assert parse_json(b"[" + b" " * (2 << 20) + b"]") == []
    with pytest.raises(BadRequest, match="more than 1 MB outside of its strings"):
        parse_json(b"1" * (2 << 20))


EDIT = json.dumps({"old_string": "a = 1", "new_string": "a = 2"})


@pytest.mark.parametrize(
    ("original", "status", "says"),
    [
        ("a = 1\n" + "é" * LARGE_BYTES, 200, '"status":"merged"'),
        ("a = 1\n" + "x" * (9 << 20), 413, "a string of more than 8.4 million characters"),
        ("é" * LARGE_BYTES + "\ud800", 400, f"holds a lone surrogate at character {LARGE_BYTES}"),
    ],
)
def test_a_large_body_is_parsed_in_a_thread_and_answered_as_any(
    original: str, status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def parse(text: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return parse_json(text)

    monkeypatch.setattr(request_body, "parse_json", parse)
    with serving(ScriptedMerger()) as url:
        sent = json.dumps({"original": original, "edit": EDIT}).encode()
        answer = httpx.post(f"{url}/apply", content=sent, headers={"content-type": "application/json"}, timeout=60)
        broken = httpx.post(f"{url}/apply", content=sent[:-1], headers={"content-type": "application/json"}, timeout=60)
    assert (answer.status_code, says in answer.text) == (status, True)
    assert broken.status_code == (413 if status == 413 else 400)
    assert [name.startswith("AnyIO worker thread") for name in threads] == [True, True]


def test_a_body_is_held_once() -> None:
    body = b'{"a": "' + b"x" * 100 + b'"}'

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    assert asyncio.run(JsonRequest({"type": "http", "headers": []}, receive).body()) is body
