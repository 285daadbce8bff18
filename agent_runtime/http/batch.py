"""`POST /apply/batch`: several applies of their own, answered line by line as each finishes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from agent_runtime.access.principal import Principal
from agent_runtime.errors import HunkError, TooManyRequests, Unsupported
from agent_runtime.http.answer import Answer, answer_of_fault
from agent_runtime.http.applying import apply_body
from agent_runtime.http.leaving import Departure
from agent_runtime.http.problems import fault_of_bug
from agent_runtime.http.running import run_watched
from agent_runtime.http.schema import EXAMPLES, ApplyBody, Text, fault_of_validation
from agent_runtime.http.service import Service

MAX_REQUESTS = 256
AT_ONCE = 32
"""Requests of one batch that are worked on at once. What has finished waits for the client, and what comes behind it
waits for that: so a client that does not read holds up so many answers and no more."""

ROUTE = "/apply/batch"

LOG = logging.getLogger("hunk.http")


class BatchItem(ApplyBody):
    """One request of a batch: the body of `POST /apply`, and what its answer is known by."""

    id: Text | int | None = Field(None, description="Given back with the answer.")
    idempotency_key: Text | None = Field(None, description="As the header `Idempotency-Key` of a request of its own.")


class BatchBody(BaseModel):
    """Requests that have nothing to do with one another; each is answered, or refused, on its own."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"requests": [{"id": number, **one} for number, one in enumerate(EXAMPLES)]}]},
    )

    requests: list[SkipValidation[BatchItem]] = Field(max_length=MAX_REQUESTS)
    """As they were sent: one that is malformed has a problem of its own."""


class Batch:
    """The requests of one batch on their way; each counts for its tenant's rate."""

    def __init__(self, service: Service, principal: Principal, requests: list[Any]) -> None:
        """Raises TooManyRequests where the rate does not carry all of them: then none begins."""
        _count(service, principal, len(requests))
        self._service = service
        self._principal = principal
        self._requests = requests
        self._departure = Departure()

    def end(self) -> None:
        """Nobody waits any more: what runs is stopped, and nothing begins."""
        self._departure.happen()

    async def lines(self) -> AsyncIterator[bytes]:
        """A line of JSON for each request, as it finishes."""
        waiting = iter(enumerate(self._requests))
        running: set[asyncio.Task[bytes]] = set()
        while True:
            for index, request in waiting:
                running.add(asyncio.create_task(self._line(index, request)))
                if len(running) == AT_ONCE:
                    break
            if not running:
                return
            finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                yield task.result()

    async def _line(self, index: int, request: Any) -> bytes:
        name = request.get("id") if isinstance(request, dict) else None
        try:
            answer = await self._answer(request)
        except HunkError as fault:
            answer = answer_of_fault(fault)
        except Exception as error:
            LOG.error("a bug ended a request of a batch", exc_info=error)
            answer = answer_of_fault(fault_of_bug(error))
        head = {"id": name if isinstance(name, str | int) else None, "index": index, "status": answer.status}
        kind = b"problem" if answer.is_problem else b"result"
        return json.dumps(head)[:-1].encode() + b', "' + kind + b'": ' + answer.content + b"}\n"

    async def _answer(self, request: Any) -> Answer:
        try:
            item = BatchItem.model_validate(request)
        except ValidationError as error:
            raise fault_of_validation(error.errors(), "the request") from error
        if item.stream:
            raise Unsupported("a batch is a stream already; leave 'stream' out", field="stream")

        async def work() -> Answer:
            merge = partial(apply_body, self._service, self._principal, item, ROUTE)
            return await run_watched(self._service, merge, self._departure)

        sent = json.dumps({name: value for name, value in request.items() if name != "id"}, sort_keys=True)
        return await self._service.answers.once(self._principal, item.idempotency_key, sent.encode(), work)


def _count(service: Service, principal: Principal, num_requests: int) -> None:
    try:
        service.tenants.count_as(principal.tenant, max(num_requests, 1))
    except TooManyRequests as fault:
        service.metering.counters.refused(fault.limit)
        raise
