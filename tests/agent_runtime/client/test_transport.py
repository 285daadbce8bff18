"""Settings, retries and streams of a client, and the fake service of `agent_runtime.testing`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime import ApplyRequest, AsyncClient, Client, Phase, Timeouts, Tokens
from agent_runtime.client import NO_RETRIES
from agent_runtime.client.calls import Call, build_path, quote_file_path
from agent_runtime.client.responses import LineReader
from agent_runtime.client.transport import (
    DEFAULT_URL,
    ClientSettings,
    Retries,
    RetryPolicy,
    Transport,
    parse_retry_after,
)
from agent_runtime.errors import BadRequest, NoConnection, TooManyRequests
from agent_runtime.request_context import Piece
from agent_runtime.serialization import result_to_json
from agent_runtime.testing import Events, FakeService, Reply, merged_result


def test_what_is_given_goes_before_the_environment_and_that_before_the_default() -> None:
    env = {"HUNK_URL": "http://there:1", "HUNK_TOKEN": "secret"}
    assert ClientSettings.from_env({}).base_url == DEFAULT_URL
    assert ClientSettings.from_env({}).token is None
    assert (ClientSettings.from_env(env).base_url, ClientSettings.from_env(env).token) == ("http://there:1", "secret")
    given = ClientSettings.from_env(env, base_url="https://here", token="mine")
    assert (given.base_url, given.token) == ("https://here", "mine")
    assert ClientSettings.from_env({"HUNK_URL": "", "HUNK_TOKEN": ""}) == ClientSettings()


@pytest.mark.parametrize("url", ["localhost:8311", "ftp://x", "http://", "", "http://x:port", "file:///etc"])
def test_a_url_that_is_none_is_refused_and_named(url: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ClientSettings.from_env({}, base_url=url)
    assert refused.value.field == "base_url"
    if url:
        with pytest.raises(BadRequest, match="HUNK_URL"):
            ClientSettings.from_env({"HUNK_URL": url})


@pytest.mark.parametrize("token", ["two words", "line\n", "ümlaut", ""])
def test_a_token_that_cannot_be_one_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(BadRequest) as refused:
        ClientSettings.from_env({}, token=token)
    assert not token or token not in str(refused.value)
    assert "secret" not in repr(ClientSettings(token="secret"))


def test_the_token_and_the_environment_reach_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUNK_TOKEN", "from-env")
    monkeypatch.setenv("HUNK_URL", "http://there/prefix/")
    fake = FakeService().script("GET /prefix/stats", {})
    with Client(transport=fake) as client:
        client.stats()
    assert fake.requests[0].headers["authorization"] == "Bearer from-env"
    assert fake.requests[0].headers["host"] == "there"


def test_no_token_no_header() -> None:
    fake = FakeService().script("GET /stats", {})
    with Client("http://fake", transport=fake) as client:
        client.stats()
    assert "authorization" not in fake.requests[0].headers


def test_a_proxy_of_the_environment_is_not_asked_for_a_service_on_this_machine() -> None:
    for url in ("http://127.0.0.1:8311", "http://localhost:1", "http://[::1]:1"):
        assert Transport(ClientSettings(url)).build_options()["trust_env"] is False
    assert Transport(ClientSettings("http://elsewhere")).build_options()["trust_env"] is True


def test_work_may_take_as_long_as_it_takes_and_a_question_may_not() -> None:
    wire = Transport(ClientSettings())
    calls: list[Call[Any]] = [
        Call("GET", "/stats", dict),
        Call("POST", "/apply", dict, works=True),
        Call("GET", "/changes", dict, silence_s=60.0),
    ]
    with httpx.Client(base_url="http://x") as http:
        assert [wire.build_request(http, call).extensions["timeout"]["read"] for call in calls] == [30.0, None, 90.0]


def test_an_answer_that_comes_too_late_is_no_connection() -> None:
    fake = FakeService().script("GET /stats", Reply({}, after_s=5.0))
    with (
        Client("http://fake", transport=fake, timeouts=Timeouts(read_s=0.01)) as client,
        pytest.raises(NoConnection, match="silent for longer"),
    ):
        client.stats()


def test_names_in_paths_stay_one_segment_and_dots_reach_the_service() -> None:
    assert build_path("workspaces", "a/b?c#d %") == "/workspaces/a%2Fb%3Fc%23d%20%25"
    assert build_path("workspaces", "..") == "/workspaces/%2E%2E"
    assert quote_file_path("../a b/./c.py") == "%2E%2E/a%20b/%2E/c.py"
    sent = httpx.Client(base_url="http://x").build_request("GET", build_path("w") + "/" + quote_file_path("../../x"))
    assert sent.url.raw_path == b"/w/%2E%2E/%2E%2E/x"


GET: Call[Any] = Call("GET", "/stats", dict)
POST: Call[Any] = Call("POST", "/apply", dict)
BROKEN = httpx.ReadError("reset")


@given(times=st.integers(0, 12), first=st.floats(0, 10), longest=st.floats(0, 100))
def test_each_wait_is_drawn_below_a_bound_that_doubles_up_to_a_limit(times: int, first: float, longest: float) -> None:
    attempts = RetryPolicy(GET, Retries(times=times, first_s=first, longest_s=longest), "url")
    for number in range(times):
        assert 0.0 <= attempts.wait_after(BROKEN) <= min(longest, first * 2**number)
    with pytest.raises(NoConnection):
        attempts.wait_after(BROKEN)


def test_waits_are_spread_over_the_whole_range() -> None:
    random.seed(0)
    waits = [RetryPolicy(GET, Retries(first_s=1.0), "url").wait_after(BROKEN) for _ in range(2000)]
    for tenth in range(10):
        assert 100 < sum(tenth <= wait * 10 < tenth + 1 for wait in waits) < 300


@pytest.mark.parametrize(
    ("call", "again"),
    [
        (GET, True),
        (Call("GET", "/readyz", dict, once=True), False),
        (POST, False),
        (Call("POST", "/apply", dict, changes_nothing=True), True),
        (Call("POST", "/apply", dict, idempotency_key="key"), True),
        (Call("DELETE", "/sessions/1", dict), False),
    ],
)
def test_only_what_may_be_sent_twice_is(call: Call[Any], again: bool) -> None:
    assert call.may_repeat == again
    if again:
        assert RetryPolicy(call, Retries(first_s=0.0), "url").wait_after(BROKEN) == 0.0
    else:
        with pytest.raises(NoConnection):
            RetryPolicy(call, Retries(), "url").wait_after(BROKEN)
        assert (
            RetryPolicy(call, Retries(), "url").wait_after_answer(httpx.Response(429, headers={"retry-after": "0"}))
            is None
        )


@pytest.mark.parametrize(
    ("status", "headers", "again"),
    [
        (200, {}, False),
        (400, {}, False),
        (409, {"retry-after": "1"}, False),
        (500, {"retry-after": "1"}, False),
        (429, {"retry-after": "1"}, True),
        (503, {"retry-after": "1", "content-type": "application/problem+json"}, True),
        (503, {"content-type": "application/problem+json"}, False),
        (504, {"content-type": "application/problem+json"}, False),
        (502, {}, True),
        (504, {"content-type": "text/html"}, True),
    ],
)
def test_which_answers_are_asked_for_again(status: int, headers: dict[str, str], again: bool) -> None:
    wait_s = RetryPolicy(GET, Retries(first_s=0.0), "url").wait_after_answer(httpx.Response(status, headers=headers))
    assert wait_s == (float(headers.get("retry-after", 0)) if again else None)


def test_the_service_is_given_the_time_that_it_asks_for_and_no_more_than_the_limit() -> None:
    retries = Retries(first_s=2.0, longest_retry_after_s=30.0)
    waits = [
        RetryPolicy(GET, retries, "url").wait_after_answer(httpx.Response(503, headers={"retry-after": "30"}))
        for _ in range(50)
    ]
    assert all(wait is not None and 30.0 <= wait <= 32.0 for wait in waits)
    assert (
        RetryPolicy(GET, retries, "url").wait_after_answer(httpx.Response(503, headers={"retry-after": "31"})) is None
    )


def test_retry_after_may_be_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=100), usegmt=True)
    assert 90 < parse_retry_after(soon) <= 100
    assert parse_retry_after(past) == 0.0


@pytest.mark.parametrize("header", ["", "soon", "-5", "1.5", "٣٣ x", "Wed, 99 Nov 2026 00:00:00 GMT"])
def test_a_retry_after_that_cannot_be_read_counts_as_none(header: str) -> None:
    assert parse_retry_after(header) == 0.0


@pytest.mark.parametrize(
    "bad", [{"times": -1}, {"first_s": -0.1}, {"longest_s": -1.0}, {"longest_retry_after_s": -1.0}]
)
def test_retries_that_make_no_sense_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        Retries(**bad)


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


REQUEST = ApplyRequest(b"a\n", "edit", "a.py")
MERGED = merged_result("a\n", "b\n", "a.py")
STREAM = Events(Phase("merge"), Phase("decode"), MERGED, every_s=0.001)


def test_answers_come_in_their_order_and_the_last_again_and_again() -> None:
    fake = FakeService().script("GET /stats", {"n": 1}, {"n": 2})
    with Client("http://fake", transport=fake) as client:
        assert [client.stats()["n"] for _ in range(4)] == [1, 2, 2, 2]
        fake.script("GET /stats", {"n": 3})
        assert client.stats() == {"n": 3}
    assert len(fake.requests) == 5


def test_what_is_not_scripted_fails_the_test_and_names_what_is() -> None:
    fake = FakeService().script("GET /stats", {})
    with Client("http://fake", transport=fake) as client:
        with pytest.raises(AssertionError, match=r"nothing for POST /apply, only GET /stats"):
            client.apply(REQUEST)
        with pytest.raises(AssertionError, match="at least one"):
            fake.script("GET /stats")


def test_a_stream_that_is_left_is_noted() -> None:
    fake = FakeService().script("POST /apply", STREAM)

    async def leave() -> None:
        async with AsyncClient("http://fake", transport=fake) as client, client.stream(REQUEST) as stream:
            await anext(stream)

    with Client("http://fake", transport=fake) as client:
        with client.stream(REQUEST) as stream:
            next(stream)
        assert [*client.stream(REQUEST)][-1] == MERGED
    anyio.run(leave)
    assert [request.left for request in fake.requests] == [True, False, True]


@pytest.mark.parametrize("is_async", [False, True])
def test_latency_counts_against_the_clients_timeouts(is_async: bool) -> None:
    fake = FakeService().script("GET /stats", Reply({}, after_s=30.0), Reply({}, after_s=0.01))
    given: dict[str, Any] = {"transport": fake, "retries": NO_RETRIES, "timeouts": Timeouts(read_s=0.02)}

    async def ask() -> None:
        async with AsyncClient("http://fake", **given) as client:
            with pytest.raises(NoConnection):
                await client.stats()
            assert await client.stats() == {}

    before = time.monotonic()
    if is_async:
        anyio.run(ask)
    else:
        with Client("http://fake", **given) as client:
            with pytest.raises(NoConnection):
                client.stats()
            assert client.stats() == {}
    assert time.monotonic() - before >= 0.03


def test_faults_come_as_the_service_sends_them() -> None:
    fake = FakeService().script("POST /apply", TooManyRequests("slow down", retry_after_s=2.5))
    answer = httpx.Client(transport=fake).post("http://fake/apply", json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "urn:hunk:problem:too-many-requests"


def test_a_result_for_scripts_is_whole() -> None:
    assert (MERGED.status, MERGED.file.data) == ("merged", b"b\n")
    assert "-a\n+b\n" in MERGED.file.diff
    assert merged_result("a\n", "a\n").status == "noop"
