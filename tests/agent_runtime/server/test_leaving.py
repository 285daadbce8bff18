"""A client that leaves stops the model, whenever it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import Request
from starlette.types import Message

from agent_runtime.server.executor import Departure


def test_what_runs_when_the_client_leaves_is_stopped() -> None:
    stopped: list[str] = []
    departure = Departure()
    departure.began(lambda: stopped.append("first"))
    departure.began(lambda: stopped.append("second"))  # of several files
    assert stopped == []
    departure.happen()
    assert stopped == ["first", "second"], "they may have been asked at once"


def test_what_begins_after_the_client_has_left_is_stopped_at_once() -> None:
    stopped: list[str] = []
    departure = Departure()
    departure.happen()
    departure.began(lambda: stopped.append("only"))
    assert stopped == ["only"]


def test_it_waits_for_the_connection_to_close() -> None:
    messages: Iterator[Message] = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    stopped: list[str] = []

    async def receive() -> Message:
        assert not stopped
        return next(messages)

    departure = Departure()
    departure.began(lambda: stopped.append("only"))
    asyncio.run(departure.wait_for(Request({"type": "http"}, receive)))
    assert stopped == ["only"]
