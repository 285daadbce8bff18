"""`/v1/...`: chats, and edits as hosted apply services take them, in OpenAI's shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic_core import to_json

from agent_runtime.access.principal import Principal
from agent_runtime.errors import HunkError
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.access import needs
from agent_runtime.http.json_body import JsonRoute
from agent_runtime.http.openai import asking
from agent_runtime.http.openai.bodies import OWN_MODEL, ChatBody, CodeApplyBody
from agent_runtime.http.openai.completions import Completion, Reply, extension_of_apply, reply_of_apply, reply_of_chat
from agent_runtime.http.openai.documents import COMPLETION, FAULTS, CodeApplyAnswer, ModelList, ModelObject
from agent_runtime.http.openai.streaming import stream
from agent_runtime.http.running import run, run_by_rule
from agent_runtime.http.service import Service
from agent_runtime.telemetry.observer import Finished
from agent_runtime.types import ApplyRequest, ApplyResult

MayApply = Annotated[Principal, Depends(needs("apply"))]

Work = Callable[[Watcher], Reply]


def openai_routes(service: Service) -> APIRouter:
    """The routes below /v1."""
    router = APIRouter(route_class=JsonRoute, prefix="/v1", tags=["openai"], responses=FAULTS)
    created = int(time.time())

    @router.post("/chat/completions", responses=COMPLETION)
    async def chat_completions(body: ChatBody, request: Request, principal: MayApply) -> Response:
        """Answer a chat, or merge the edit that its only user message holds."""
        work, is_edit = await run_by_rule(service, partial(_prepare, service, principal, body))
        completion = Completion(service.model.name)
        if body.stream:
            return await stream(
                service, request, work, completion, with_usage=body.includes_usage, as_written=not is_edit
            )
        reply = await run(service, request, work)
        return Response(to_json(completion.whole(reply)), media_type="application/json")

    @router.post("/code/apply", responses={200: {"model": CodeApplyAnswer}})
    async def code_apply(body: CodeApplyBody, request: Request, principal: MayApply) -> dict[str, Any]:
        """Merge a snippet into a file: `mergedCode` is the whole file."""
        asking.check_model(body.model, service.model.name, for_edit=True)
        edit = await run_by_rule(service, partial(asking.code_apply_request, body, principal.salt))
        merge = partial(_merged, service, "/v1/code/apply", principal, edit)
        result = await run(service, request, merge)
        return {"mergedCode": result.file.merged, "hunk": extension_of_apply(result)}

    @router.get("/models", responses={200: {"model": ModelList}})
    async def models() -> dict[str, Any]:
        """The model that the service runs, under its own name and as `hunk`."""
        return {"object": "list", "data": [_model(name, created) for name in (service.model.name, OWN_MODEL)]}

    @router.get("/models/{name:path}", responses={200: {"model": ModelObject}})
    async def model(name: str) -> dict[str, Any]:
        """One of them, or a name that edits may be sent to."""
        asking.check_model(name, service.model.name, for_edit=True)
        return _model(name, created)

    return router


def _prepare(service: Service, principal: Principal, body: ChatBody) -> tuple[Work, bool]:
    """Check a body and read it: the call that answers it, and whether that merges an edit."""
    body.check()
    edit = asking.edit_in(body)
    asking.check_model(body.model, service.model.name, for_edit=edit is not None)
    if edit is not None:
        request = asking.apply_request(body, edit, principal.salt)
        return partial(_merge, service, principal, request), True
    chat = asking.chat_request(body, principal.salt)
    with_logprobs = chat.logprobs is not None

    def answer(watcher: Watcher) -> Reply:
        return reply_of_chat(service.model.chat().answer(chat, watcher), with_logprobs=with_logprobs)

    return partial(_answered, service, principal, answer), False


def _merge(service: Service, principal: Principal, request: ApplyRequest, watcher: Watcher) -> Reply:
    return reply_of_apply(_merged(service, "/v1/chat/completions", principal, request, watcher))


def _merged(service: Service, route: str, principal: Principal, request: ApplyRequest, watcher: Watcher) -> ApplyResult:
    """The merge, which no check rejects; the observer is told of it in any case."""
    try:
        result = service.applier.apply(request, watcher)
    except HunkError as fault:
        service.observer.finished(Finished.with_fault(route, principal.tenant, fault))
        raise
    service.observer.finished(Finished.with_result(route, principal.tenant, result))
    asking.check_merged(result)
    return result


def _answered(service: Service, principal: Principal, answer: Work, watcher: Watcher) -> Reply:
    """The answer, of which the observer is told."""
    route = "/v1/chat/completions"
    try:
        reply = answer(watcher)
    except HunkError as fault:
        service.observer.finished(Finished.with_fault(route, principal.tenant, fault))
        raise
    timings = reply.extension["timings"]
    first_token_ms = timings["prompt_ms"] + timings["prefill_ms"]
    service.observer.finished(
        Finished(route, principal.tenant, "answered", reply.usage, timings, first_token_ms=first_token_ms)
    )
    return reply


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "hunk"}
