"""Runs the same call by the blocking and by the asynchronous client, and compares the outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import httpx

from agent_runtime.client import AsyncClient, AsyncItems, BatchItem, Client, Items, Retries
from agent_runtime.errors import HunkError
from agent_runtime.serialization import problem_to_json
from agent_runtime.testing import FakeService

AT_ONCE = Retries(first_s=0.0)

Doing = Callable[[Any], Any]
"""A call of either client; its result is awaited, or iterated, if necessary."""


@dataclass(frozen=True)
class Outcome:
    """The outcome: a value, the items of a stream, or an error."""

    value: Any = None
    error: tuple[type, str, dict[str, Any]] | None = None


def by_blocking(doing: Doing, url: str = "http://fake", transport: httpx.BaseTransport | None = None) -> Outcome:
    with Client(url, retries=AT_ONCE, transport=transport) as client:
        try:
            done = doing(client)
            return Outcome([_plain(item) for item in done] if isinstance(done, Items) else done)
        except HunkError as error:
            return Outcome(error=_shown(error))


def by_async(doing: Doing, url: str = "http://fake", transport: httpx.AsyncBaseTransport | None = None) -> Outcome:
    async def run() -> Outcome:
        async with AsyncClient(url, retries=AT_ONCE, transport=transport) as client:
            try:
                done = doing(client)
                if isinstance(done, AsyncItems):
                    return Outcome([_plain(item) async for item in done])
                return Outcome(await done if inspect.isawaitable(done) else done)
            except HunkError as error:
                return Outcome(error=_shown(error))

    return anyio.run(run)


def both(doing: Doing, script: Callable[[FakeService], Any]) -> tuple[Outcome, FakeService]:
    """Return the outcome with the same script, equal for both clients, and the service of the blocking one."""
    services = FakeService(), FakeService()
    for service in services:
        script(service)
    blocking = by_blocking(doing, transport=services[0])
    asynchronous = by_async(doing, transport=services[1])
    assert blocking == asynchronous
    assert [_comparable(one) for one in services[0].requests] == [_comparable(one) for one in services[1].requests]
    return blocking, services[0]


def _plain(item: Any) -> Any:
    """Return an item; the error of a batch item as its type, text and problem."""
    if isinstance(item, BatchItem) and isinstance(item.outcome, HunkError):
        return item.index, _shown(item.outcome)
    return item


def _shown(error: HunkError) -> tuple[type, str, dict[str, Any]]:
    return type(error), str(error), problem_to_json(error)


def _comparable(recorded: Any) -> tuple[Any, ...]:
    """Return the parts of a request, with a random idempotency key replaced."""
    headers = {name: "" if name == "idempotency-key" else value for name, value in recorded.headers.items()}
    return recorded.method, recorded.path, recorded.query, headers, _without_keys(recorded.body), recorded.left


def _without_keys(body: Any) -> Any:
    """Return the body with the random keys of a batch replaced."""
    if not isinstance(body, dict) or "requests" not in body:
        return body
    return [{**request, "idempotency_key": bool(request.get("idempotency_key"))} for request in body["requests"]]
