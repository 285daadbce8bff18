"""A client that leaves stops the model, whenever it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.requests import Request
from starlette.types import Message

from agent_runtime.request_context import CancelToken, RequestContext
from agent_runtime.server.service import cancel_after_disconnect


def test_what_runs_when_the_client_leaves_is_stopped() -> None:
    stopped: list[str] = []
    cancel = CancelToken()
    cancel.add_callback(lambda: stopped.append("first"))
    cancel.add_callback(lambda: stopped.append("second"))  # of several files
    assert stopped == []
    cancel.cancel()
    assert stopped == ["first", "second"], "they may have been asked at once"


def test_what_begins_after_the_client_has_left_is_stopped_at_once() -> None:
    stopped: list[str] = []
    cancel = CancelToken()
    cancel.cancel()
    cancel.add_callback(lambda: stopped.append("only"))
    assert stopped == ["only"]


def test_it_waits_for_the_connection_to_close() -> None:
    messages: Iterator[Message] = iter([{"type": "http.request"}, {"type": "http.disconnect"}])
    stopped: list[str] = []

    async def receive() -> Message:
        assert not stopped
        return next(messages)

    context = RequestContext()
    context.cancel.add_callback(lambda: stopped.append("only"))
    asyncio.run(cancel_after_disconnect(Request({"type": "http"}, receive), context))
    assert stopped == ["only"]
