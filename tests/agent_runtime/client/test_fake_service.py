"""The fake service: scripted answers, delays, and a failing test where nothing is scripted."""

from __future__ import annotations

import time
from typing import Any

import anyio
import httpx
import pytest

from agent_runtime import ApplyRequest, AsyncClient, Client, Phase, Timeouts
from agent_runtime.client import NO_RETRIES
from agent_runtime.errors import NoConnection, TooManyRequests
from agent_runtime.testing import Events, FakeService, Reply, merged_result

REQUEST = ApplyRequest(b"a\n", "edit", "a.py")
RESULT = merged_result("a\n", "b\n", "a.py")
STREAM = Events(Phase("merge"), Phase("decode"), RESULT, every_s=0.001)


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
        assert [*client.stream(REQUEST)][-1] == RESULT
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
    assert (RESULT.status, RESULT.file.data) == ("merged", b"b\n")
    assert "-a\n+b\n" in RESULT.file.diff
    assert merged_result("a\n", "a\n").status == "noop"
