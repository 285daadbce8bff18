"""Bodies of requests and answers: parsed and encoded in steps, and what a malformed request is answered."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json
from starlette.types import Message

from agent_runtime.apply.pipeline import Applier
from agent_runtime.errors import BadRequest, ModelUnavailable, TooLarge
from agent_runtime.llm.interface import ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.serialization import result_to_json
from agent_runtime.server import request_body, responses
from agent_runtime.server.request_body import LARGE_BYTES, MAX_DEPTH, JsonRequest, parse_json
from agent_runtime.server.responses import BLOCK_CHARACTERS, encode_in_steps, encode_result
from agent_runtime.types import ApplyRequest
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import post, serving

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


FILE = "a = 1\nb = 2\n"
BLOCK = "<<<<<<< SEARCH\na = 1\n=======\na = 3\n>>>>>>> REPLACE\n"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    class Buggy(ScriptedMerger):
        def merge(self, task: ModelTask, context: RequestContext, progress: ProgressListener) -> NoReturn:
            raise KeyError("of ours")

    with serving(Buggy()) as url:
        yield url


def problem(response: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """The problem, which has to be this one."""
    assert response.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = response.json()
    assert (response.status_code, told["status"], told["type"]) == (status, status, f"urn:hunk:problem:{kind}")
    assert told["title"]
    assert told["detail"]
    assert response.headers["x-request-id"]
    return told


@pytest.mark.parametrize("path", ["/nothing", "/apply/", "/redoc", "/apply/batch/x", "/%00", "//apply"])
def test_a_path_that_there_is_not(url: str, path: str) -> None:
    problem(httpx.get(url + path), 404, "no-such-route")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_a_method_that_a_path_does_not_take(url: str, method: str) -> None:
    response = httpx.request(method, f"{url}/apply")
    assert response.headers["allow"] == "POST"
    if method == "HEAD":
        assert response.status_code == 405
    else:
        assert "POST" in problem(response, 405, "method-not-allowed")["detail"]


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", ""])
@pytest.mark.parametrize("path", ["/apply", "/apply/batch"])
def test_a_body_that_is_not_sent_as_json(url: str, media: str, path: str) -> None:
    content = json.dumps({"original": FILE, "edit": BLOCK})
    response = httpx.post(url + path, content=content, headers={"content-type": media} if media else {})
    assert "application/json" in problem(response, 415, "unsupported-media-type")["detail"]


@pytest.mark.parametrize("media", ["application/json", "application/json; charset=utf-8", "Application/Vnd.x+JSON"])
def test_a_body_that_is(url: str, media: str) -> None:
    content = json.dumps({"original": FILE, "edit": BLOCK})
    assert httpx.post(f"{url}/apply", content=content, headers={"content-type": media}).status_code == 200


UNREADABLE = {
    "nothing": b"",
    "not JSON": b"{",
    "two values": b'{"edit": "x"} {}',
    "not UTF-8": b'{"edit": "\xff"}',
    "an integer of a million digits": b'{"seed": ' + b"1" * 1_000_000 + b"}",
    "NaN": b'{"original": "", "edit": "x", "temperature": NaN}',
    "infinity": b'{"original": "", "edit": "x", "temperature": 1e999}',
    "a huge seed": b'{"original": "", "edit": "x", "seed": 1' + b"0" * 400 + b"}",
    "a huge limit": b'{"original": "", "edit": "x", "max_tokens": 99999999999999999999}',
    "a number for a text": b'{"original": 1, "edit": "x"}',
    "a text for a number": b'{"original": "", "edit": "x", "seed": "1"}',
    "true for a number": b'{"original": "", "edit": "x", "seed": true}',
    "a list": b"[]",
    "a text": b'"edit"',
    "null": b"null",
    "deep lists": b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
    "very deep lists": b"[" * 1_000_000,
    "very deep objects": b'{"files":' * 200_000 + b"1" + b"}" * 200_000,
    "deep within a field": b'{"edit": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a lone surrogate": b'{"original": "\\ud800", "edit": "x"}',
    "a lone surrogate for a name": b'{"original": "", "edit": "x", "\\ud800": 1}',
    "a lone surrogate for a choice": b'{"original": "", "edit": "x", "mode": "\\ud800"}',
}


@pytest.mark.parametrize("content", UNREADABLE.values(), ids=UNREADABLE)
def test_a_body_that_cannot_be_read(url: str, content: bytes) -> None:
    problem(httpx.post(f"{url}/apply", content=content, headers=JSON), 400, "malformed")


@pytest.mark.parametrize("name", ["x", "x" * 1_000_000, "", "a.b", "edit ", "__proto__", "\n"])
def test_a_field_that_there_is_not_is_named_in_short(url: str, name: str) -> None:
    content = json.dumps({"original": FILE, "edit": BLOCK, name: 1})
    told = problem(httpx.post(f"{url}/apply", content=content, headers=JSON), 422, "unsupported")
    assert told.get("field", "") == name[:100]
    assert len(json.dumps(told)) < 2000


def test_the_last_of_two_fields_of_one_name_counts(url: str) -> None:
    content = json.dumps({"original": FILE, "edit": "zzz"})[:-1] + f', "edit": {json.dumps(BLOCK)}}}'
    assert httpx.post(f"{url}/apply", content=content, headers=JSON).json()["merged"].startswith("a = 3")


def test_a_bug_of_ours_has_an_id_too(url: str) -> None:
    body = {"original": FILE, "edit": BLOCK, "mode": "model"}
    response = httpx.post(f"{url}/apply", json=body, headers={"X-Request-Id": "mine-1"})
    told = problem(response, 500, "internal")
    assert response.headers["x-request-id"] == "mine-1"
    assert "of ours" not in told["detail"], "what the error says may quote a file"


@pytest.mark.parametrize("sent", ["a", "A-1_2.3:4/5+6=7@8", "x" * 128])
def test_a_sane_request_id_is_taken_over(url: str, sent: str) -> None:
    for path in ("/healthz", "/nothing"):
        assert httpx.get(url + path, headers={"X-Request-Id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", [b"", b"a b", b"x" * 129, b"a\tb", b'"', "é".encode(), b"<script>"])
def test_any_other_is_replaced(url: str, sent: bytes) -> None:
    made = {httpx.get(f"{url}/healthz", headers={b"X-Request-Id": sent}).headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    assert all(one.isalnum() for one in made)


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /apply HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /apply HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /apply HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_http_does_no_harm(url: str, sent: bytes) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while more := connection.recv(1 << 16):
            answer += more
    assert b" 500 " not in answer.partition(b"\r\n")[0]
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_path_that_no_file_can_have(tmp_path: Path) -> None:
    with serving(None, tmp_path) as url:
        for path in ("\0", "a\0b", "x" * 5000, "x/" * 3000, ".", "/", "~", "a/../..", "con\nsole", ""):
            response = httpx.post(f"{url}/apply", json={"path": path, "edit": BLOCK, "write": True})
            assert 400 <= response.status_code < 500, path
            assert response.headers["content-type"] == "application/problem+json"
    assert list(tmp_path.iterdir()) == []


LARGE_TEXTS = st.text(st.sampled_from('a"\\\n\x01é漢😀\u2028'), min_size=1).map(lambda text: text * BLOCK_CHARACTERS)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | LARGE_TEXTS,
        lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
        max_leaves=5,
    )
)
def test_a_value_is_encoded_as_in_one_step(value: Any) -> None:
    assert encode_in_steps(value) == to_json(value)


def no_model() -> None:
    raise ModelUnavailable("there is none")


@pytest.mark.parametrize("num_lines", [10, 200_000])
def test_no_long_text_is_encoded_at_once(num_lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = "a = 1\n" + "é = '\\n'\n" * num_lines
    request = ApplyRequest(original.encode(), '{"old_string": "a = 1", "new_string": "a = 2"}', "a.txt")
    result = Applier(no_model).apply(request)  # type: ignore[arg-type]
    lengths = []

    def counted(value: Any) -> bytes:
        lengths.append(len(value) if isinstance(value, str) else len(str(value)))
        return to_json(value)

    monkeypatch.setattr(responses, "to_json", counted)
    assert encode_result(result).content == to_json(result_to_json(result))
    assert max(lengths) <= BLOCK_CHARACTERS


@pytest.mark.parametrize(
    "edit",
    [
        {"old_string": "a = 1", "new_string": "a = 2"},
        [{"old_string": "a = 1", "new_string": "a = 2"}],
        '{"old_string": "a = 1", "new_string": "a = 2"}',
    ],
    ids=["object", "list", "text"],
)
def test_an_edit_in_json_may_be_the_object_itself(edit: object) -> None:
    with serving(None) as url:
        one = post(url, {"original": "a = 1\n", "edit": edit, "path": "a.py"})
        many = post(url, {"files": [{"original": "a = 1\n", "edit": edit, "path": "a.py"}]})
    assert one.json()["merged"] == many.json()["files"][0]["merged"] == "a = 2\n"


@pytest.mark.parametrize("edit", [1, True, ["a"], [1]])
def test_an_edit_of_another_type_is_malformed(edit: object) -> None:
    with serving(None) as url:
        answer = post(url, {"original": "a = 1\n", "edit": edit, "path": "a.py"})
    assert (answer.status_code, answer.json()["field"]) == (400, "edit")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("old_string", "an edit in JSON is the value of 'edit'"),
        ("pth", "did you mean 'path'?"),
        ("zzz", "there is no field 'zzz'"),
    ],
)
def test_an_unknown_field_says_what_was_meant(field: str, said: str) -> None:
    with serving(None) as url:
        answer = post(url, {field: "x", "original": "a\n", "edit": "x"})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]


def test_openapi_says_that_an_edit_may_be_an_object() -> None:
    with serving(None) as url:
        schema = httpx.get(f"{url}/openapi.json").json()["components"]["schemas"]["ApplyBody"]["properties"]["edit"]
    assert {"type": "object"} in schema["anyOf"][0].get("anyOf", schema["anyOf"])
