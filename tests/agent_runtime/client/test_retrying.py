"""Retries: which calls are repeated, and after which wait."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runtime.client.calls import Call
from agent_runtime.client.transport import Retries, RetryPolicy, parse_retry_after
from agent_runtime.errors import BadRequest, NoConnection

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
