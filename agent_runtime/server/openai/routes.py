"""`/v1/...`: chats, and edits in the format of hosted apply services, complete or streamed."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic_core import to_json

from agent_runtime.errors import BadRequest, EditRefused, HunkError, UnknownModel, Unsupported
from agent_runtime.files import MAX_EDIT_BYTES, MAX_FILE_BYTES, check_size
from agent_runtime.llm.interface import ChatRequest
from agent_runtime.request_context import NO_PROGRESS, Piece, ProgressListener, RequestContext
from agent_runtime.serialization import problem_to_json
from agent_runtime.server.auth import require
from agent_runtime.server.openai.requests import (
    OWN_MODEL,
    ApplyMessage,
    ApplyOptions,
    ChatBody,
    CodeApplyBody,
    guess_file_name,
    parse_apply_message,
)
from agent_runtime.server.openai.responses import (
    Completion,
    OpenAIReply,
    make_apply_extension,
    make_apply_reply,
    make_chat_reply,
    usage_to_json,
)
from agent_runtime.server.openapi import COMPLETION, FAULTS, CodeApplyAnswer, ModelList, ModelObject
from agent_runtime.server.problems import make_bug_fault, to_openai_error
from agent_runtime.server.request_body import JsonRoute
from agent_runtime.server.responses import StreamedResponse
from agent_runtime.server.schemas import get_prediction_text
from agent_runtime.server.service import Service, cancel_after_disconnect, cancel_on_disconnect, run_in_thread
from agent_runtime.telemetry.metrics import RequestOutcome
from agent_runtime.types import ApplyRequest, ApplyResult
from editor.execution import use_cache_of

APPLY_MODELS = ("morph-v3-fast", "morph-v3-large", "auto")
"""Names of models for edits at hosted apply services; others begin with one of `APPLY_PREFIXES`."""

APPLY_PREFIXES = ("morph-", "relace-")

GREEDY = 0.0
"""The default temperature: the most likely answer, and the same each time."""


def check_model(asked: str, own: str, *, for_edit: bool) -> None:
    """Raise UnknownModel if the service does not run this model, BadRequest if a chat names a model for edits."""
    if asked in (own, OWN_MODEL):
        return
    if asked in APPLY_MODELS or asked.startswith(APPLY_PREFIXES):
        if for_edit:
            return
        raise BadRequest(
            f"the model {asked!r} merges edits: send one user message "
            f"<instruction>...</instruction><code>...</code><update>...</update>, or ask {OWN_MODEL!r}",
            field="model",
        )
    raise UnknownModel(
        f"there is no model {asked!r} here; this service runs {own!r}, which is also called {OWN_MODEL!r}"
    )


def find_edit(body: ChatBody) -> ApplyMessage | None:
    """Return the edit in the only user message; None if the body is a chat. System messages of an edit are ignored."""
    messages = [message.to_chat_message() for message in body.messages]
    others = [message for message in messages if message.role != "system"]
    if len(others) != 1 or others[0].role != "user":
        return None
    return parse_apply_message(others[0].text)


def build_chat_request(body: ChatBody, salt: str) -> ChatRequest:
    """Build the request of a chat; raises BadRequest."""
    if body.hunk is not None:
        raise BadRequest("'hunk' is of an edit, and the messages hold none", field="hunk")
    return ChatRequest(
        prompt=tuple(message.to_chat_message() for message in body.messages),
        max_tokens=body.max_answer_tokens,
        temperature=GREEDY if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=body.top_k or 0,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_parse_bias(body.logit_bias or {}),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        stop=_parse_stop(body.stop),
        prediction=get_prediction_text(body.prediction),
        salt=salt,
    )


def build_apply_request(body: ChatBody, edit: ApplyMessage, salt: str) -> ApplyRequest:
    """Build the request of an edit in a message; raises Unsupported for options that only chats have."""
    for name in ("stop", "logprobs", "logit_bias"):
        if getattr(body, name):
            raise Unsupported(f"{name!r} is of chats, and the message holds an edit", field=name)
    return _build_request(
        edit,
        body.hunk,
        salt,
        max_tokens=body.max_answer_tokens,
        temperature=GREEDY if body.temperature is None else body.temperature,
        seed=body.seed or 0,
        prediction=get_prediction_text(body.prediction),
    )


def build_code_apply_request(body: CodeApplyBody, salt: str) -> ApplyRequest:
    """Build the request of an edit that is sent to `/v1/code/apply`."""
    return _build_request(ApplyMessage(body.initial_code, body.edit_snippet, body.instructions), body.hunk, salt)


def check_merged(result: ApplyResult) -> None:
    """Raise EditRefused if a check rejects the merge: clients write the file that they get."""
    if result.status == "rejected":
        failed = "; ".join(f"{check.name}: {check.detail}" for check in result.file.checks if not check.ok)
        raise EditRefused(f"the merge was made, but is rejected by a check ({failed}); POST /apply shows it")


def _build_request(edit: ApplyMessage, options: ApplyOptions | None, salt: str, **more: Any) -> ApplyRequest:
    original = edit.code.encode()
    check_size(len(original), "the file", MAX_FILE_BYTES)
    check_size(len(edit.update), "the edit", MAX_EDIT_BYTES)
    given = {"path": ""} if options is None else options.model_dump()
    with use_cache_of(salt):
        given["path"] = given["path"] or guess_file_name(edit.code)
    return ApplyRequest(original, edit.update, instruction=edit.instruction, salt=salt, **given, **more)


def _parse_bias(by_name: dict[str, float]) -> dict[int, float]:
    if not all(re.fullmatch("[0-9]{1,9}", name) for name in by_name):
        raise BadRequest("'logit_bias' maps ids of the model's tokens to numbers", field="logit_bias")
    return {int(name): bias for name, bias in by_name.items()}


def _parse_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


HEARTBEAT_SECONDS = 10.0
"""Seconds without text after which a comment is sent, so that proxies keep the connection open."""

PIECE_CHARACTERS = 4096
"""Characters per chunk of a text that is complete at once."""

HEARTBEAT = b": the work goes on\n\n"


class TextStream(ProgressListener):
    """Passes the text of an answer from the thread that writes it to the event loop that creates this.

    Text that the client has not read yet is joined, so that it takes no more memory than the answer.
    """

    def __init__(self, *, wants_text: bool) -> None:
        """Without `wants_text` no text is passed: the answer is sent when it is complete."""
        self.wants_text = wants_text
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._waiting: list[str] = []
        self._more = asyncio.Event()

    def on_pieces(self, region: int, pieces: Sequence[Piece], path: str = "") -> None:
        """Add the text. Called in the thread."""
        with self._lock:
            self._waiting += [piece.text for piece in pieces]
        with suppress(RuntimeError):  # the loop has ended, and nobody reads any more
            self._loop.call_soon_threadsafe(self._more.set)

    def take(self) -> str:
        """Return the text since the last call."""
        self._more.clear()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        return "".join(waiting)

    async def wait(self, task: asyncio.Task[OpenAIReply]) -> bool:
        """Wait for text or the end of the task; return False if neither came for so long that a heartbeat is due."""
        more = asyncio.create_task(self._more.wait())
        try:
            done, _ = await asyncio.wait((more, task), timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            more.cancel()
        return bool(done)


Work = Callable[[RequestContext, ProgressListener], OpenAIReply]


async def stream_reply(
    service: Service,
    request: Request,
    context: RequestContext,
    work: Work,
    completion: Completion,
    *,
    with_usage: bool,
    as_written: bool,
) -> Response:
    """Return the reply in chunks: `as_written` by the model, or when it is complete.

    An error before the first text is raised, and answered with its own status. A later one is reported in the stream,
    as OpenAI's clients expect.
    """
    texts = TextStream(wants_text=as_written)
    leaving = asyncio.create_task(cancel_after_disconnect(request, context))
    task = asyncio.create_task(run_in_thread(service, context, lambda context: work(context, texts)))
    task.add_done_callback(_retrieve_exception)

    def end() -> None:
        leaving.cancel()
        context.cancel.cancel()

    try:
        await texts.wait(task)
        if task.done():
            task.result()
    except BaseException:
        end()
        raise
    return StreamedResponse(_encode_chunks(texts, task, completion, with_usage), end, "text/event-stream", {})


async def _encode_chunks(
    texts: TextStream, task: asyncio.Task[OpenAIReply], completion: Completion, with_usage: bool
) -> AsyncIterator[bytes]:
    yield _encode_event(completion.build_first_chunk())
    num_sent, has_news = 0, True
    try:
        while not task.done():
            if text := texts.take():
                num_sent += len(text)
                yield _encode_event(completion.build_text_chunk(text))
            elif not has_news:
                yield HEARTBEAT
            has_news = await texts.wait(task)
        reply = task.result()
    except HunkError as fault:
        yield _encode_event(to_openai_error(problem_to_json(fault)))
        return
    except Exception as error:  # noqa: BLE001 -- the answer has begun, so that its status is sent already
        yield _encode_event(to_openai_error(problem_to_json(make_bug_fault(error))))
        return
    for start in range(num_sent, len(reply.text), PIECE_CHARACTERS):
        yield _encode_event(completion.build_text_chunk(reply.text[start : start + PIECE_CHARACTERS]))
    yield _encode_event(completion.build_last_chunk(reply))
    if with_usage:
        yield _encode_event(completion.build_usage_chunk(reply))
    yield b"data: [DONE]\n\n"


def _encode_event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"


def _retrieve_exception(task: asyncio.Task[OpenAIReply]) -> None:
    """Mark the task's exception as retrieved: after a disconnect nothing else reads it."""
    if not task.cancelled():
        task.exception()


MayApply = Annotated[RequestContext, Depends(require("apply"))]

CHAT_ROUTE = "/v1/chat/completions"
CODE_ROUTE = "/v1/code/apply"


def build_openai_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute, prefix="/v1", tags=["openai"], responses=FAULTS)
    created = int(time.time())

    @router.post("/chat/completions", responses=COMPLETION)
    async def chat_completions(body: ChatBody, request: Request, context: MayApply) -> Response:
        """Answer a chat, or merge the edit in its only user message."""
        parsed = await run_in_thread(service, context, lambda context: _parse_chat(service, body, context))

        def work(context: RequestContext, progress: ProgressListener) -> OpenAIReply:
            if isinstance(parsed, ApplyRequest):
                return make_apply_reply(_merge(service, CHAT_ROUTE, parsed, context, progress))
            return _answer_chat(service, parsed, context, progress)

        completion = Completion(service.model.name)
        if body.stream:
            as_written = not isinstance(parsed, ApplyRequest)
            return await stream_reply(
                service, request, context, work, completion, with_usage=body.includes_usage, as_written=as_written
            )
        async with cancel_on_disconnect(request, context):
            reply = await run_in_thread(service, context, lambda context: work(context, NO_PROGRESS))
        return Response(to_json(completion.build_whole(reply)), media_type="application/json")

    @router.post("/code/apply", responses={200: {"model": CodeApplyAnswer}})
    async def code_apply(body: CodeApplyBody, request: Request, context: MayApply) -> dict[str, Any]:
        """Merge a snippet into a file: `mergedCode` is the whole file."""
        check_model(body.model, service.model.name, for_edit=True)
        salt = context.principal.salt
        edit = await run_in_thread(service, context, lambda _: build_code_apply_request(body, salt))
        async with cancel_on_disconnect(request, context):
            result = await run_in_thread(
                service, context, lambda context: _merge(service, CODE_ROUTE, edit, context, NO_PROGRESS)
            )
        return {
            "mergedCode": result.file.merged,
            "usage": usage_to_json(result.usage),
            "hunk": make_apply_extension(result),
        }

    @router.get("/models", responses={200: {"model": ModelList}})
    async def models() -> dict[str, Any]:
        """List the model that the service runs, under its own name and as `hunk`."""
        return {"object": "list", "data": [_describe_model(name, created) for name in (service.model.name, OWN_MODEL)]}

    @router.get("/models/{name:path}", responses={200: {"model": ModelObject}})
    async def model(name: str) -> dict[str, Any]:
        """Describe one of them, or a name of a model for edits."""
        check_model(name, service.model.name, for_edit=True)
        return _describe_model(name, created)

    return router


def _parse_chat(service: Service, body: ChatBody, context: RequestContext) -> ApplyRequest | ChatRequest:
    """Check a body and return its edit or chat."""
    body.check()
    edit = find_edit(body)
    check_model(body.model, service.model.name, for_edit=edit is not None)
    salt = context.principal.salt
    return build_chat_request(body, salt) if edit is None else build_apply_request(body, edit, salt)


def _merge(
    service: Service, route: str, request: ApplyRequest, context: RequestContext, progress: ProgressListener
) -> ApplyResult:
    """Merge an edit, and report the outcome. Raises EditRefused where a check rejects the merge."""
    try:
        result = service.applier.apply(request, context, progress)
    except HunkError as fault:
        service.metering.on_outcome(RequestOutcome.from_fault(route, context.tenant, fault))
        raise
    service.metering.on_outcome(RequestOutcome.from_result(route, context.tenant, result))
    check_merged(result)
    return result


def _answer_chat(
    service: Service, chat: ChatRequest, context: RequestContext, progress: ProgressListener
) -> OpenAIReply:
    """Have the model answer a chat, and report the outcome."""
    try:
        answer = service.model.chat().answer(chat, context, progress)
        reply = make_chat_reply(answer, with_logprobs=chat.logprobs is not None)
    except HunkError as fault:
        service.metering.on_outcome(RequestOutcome.from_fault(CHAT_ROUTE, context.tenant, fault))
        raise
    timings = reply.extension["timings"]
    first_token_ms = timings["prompt_ms"] + timings["prefill_ms"]
    outcome = RequestOutcome(
        CHAT_ROUTE, context.tenant, "answered", reply.usage, timings, first_token_ms=first_token_ms
    )
    service.metering.on_outcome(outcome)
    return reply


def _describe_model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "hunk"}
