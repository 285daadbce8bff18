"""`POST /apply`: an edit, or several, merged into their files. `POST /apply/batch`: several such requests at once."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Response

from agent_runtime.access.principal import Principal
from agent_runtime.errors import Unsupported
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.access import needs
from agent_runtime.http.answer import Answer
from agent_runtime.http.apply_docs import NdJson, apply_responses, batch_responses
from agent_runtime.http.apply_stream import streamed
from agent_runtime.http.applying import apply_body
from agent_runtime.http.batch import Batch, BatchBody
from agent_runtime.http.idempotency import IdempotencyKey
from agent_runtime.http.json_body import JsonRoute
from agent_runtime.http.running import run, run_watched
from agent_runtime.http.schema import ApplyBody
from agent_runtime.http.service import Service
from agent_runtime.http.streaming import Streamed

MayApply = Annotated[Principal, Depends(needs("apply"))]

NoIdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", include_in_schema=False)]
"""Refused: who sends one relies on it."""


def apply_routes(service: Service) -> APIRouter:
    """The routes that merge edits."""
    router = APIRouter(route_class=JsonRoute, tags=["apply"])

    @router.post("/apply", summary="Merge an edit", responses=apply_responses())
    async def apply(
        body: ApplyBody, request: Request, principal: MayApply, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Merge an edit into its file, or into several files: all or none.

        Rules first; the model only where none decides. Nothing is written without `write`. With `stream`, the answer is
        events.
        """
        work = partial(apply_body, service, principal, body, "/apply")
        once = partial(service.answers.once, principal, idempotency_key, await request.body())

        if body.stream:

            async def followed(watcher: Watcher) -> Answer:
                return await once(partial(run_watched, service, work, watcher))

            return await streamed(request, followed)
        answer: Answer = await once(partial(run, service, request, work))
        return answer.response()

    @router.post("/apply/batch", summary="Merge many edits", response_class=NdJson, responses=batch_responses())
    async def apply_batch(body: BatchBody, principal: MayApply, idempotency_key: NoIdempotencyKey = None) -> Response:
        """Merge many edits that have nothing to do with one another; each is answered as it finishes.

        They run at once and share the model's passes. Edits of one file belong into one request.
        """
        if idempotency_key is not None:
            raise Unsupported("give each request of a batch its own 'idempotency_key' instead", field="Idempotency-Key")
        batch = Batch(service, principal, list(body.requests))
        return Streamed(batch.lines(), batch.end, "application/x-ndjson", {})

    return router
