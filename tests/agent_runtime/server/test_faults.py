"""Whatever is wrong with a request, the answer is problem details of a kind that is documented, and has an id."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from agent_runtime.llm.interface import ModelTask
from agent_runtime.request_context import ProgressListener, RequestContext
from agent_runtime.server.request_body import MAX_DEPTH
from tests.agent_runtime.scripted import ScriptedMerger
from tests.agent_runtime.serving import serving

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


@pytest.mark.parametrize("path", ["/nothing", "/apply/", "/docs", "/redoc", "/apply/batch/x", "/%00", "//apply"])
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
