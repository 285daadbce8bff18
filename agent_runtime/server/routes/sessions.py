"""`/sessions`: conversations of an agent with the model about files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from agent_runtime.errors import (
    BadFile,
    BadRequest,
    EditRefused,
    FileMissing,
    Forbidden,
    HunkError,
    ModelUnavailable,
    OutsideRoot,
    SessionBusy,
    SessionMissing,
    Stale,
    TooLarge,
    TooManyRequests,
    WorkspaceMissing,
)
from agent_runtime.files import MAX_EDIT_BYTES, check_size
from agent_runtime.models.config import get_session_reuse
from agent_runtime.request_context import FirstTokenTimer, Principal, ProgressFanOut, ProgressListener, RequestContext
from agent_runtime.server.auth import require
from agent_runtime.server.openapi import ApplyAnswer, describe_problems
from agent_runtime.server.request_body import JsonRoute
from agent_runtime.server.responses import EncodedAnswer, IdempotencyKey, encode_problem, encode_result
from agent_runtime.server.schemas import AskBody, ReadBody, SessionApplyBody, SessionBody, get_prediction_text
from agent_runtime.server.service import Service, answer_request, run_in_thread
from agent_runtime.session import PREAMBLE, ReadFile, ServerSession, SessionAnswer, SessionState
from agent_runtime.telemetry.metrics import RequestOutcome

ASK = "/sessions/{session_id}/ask"
APPLY = "/sessions/{session_id}/apply"
"""Names of the routes in outcomes."""


def start_session(service: Service, principal: Principal, body: SessionBody) -> ServerSession:
    """Start a session; raises WorkspaceMissing, TooManyRequests."""
    named = body.workspace is not None or service.workspaces.has_default
    entry = service.workspaces.get_entry(body.workspace, principal) if named else None
    session = ServerSession(
        service.applier,
        service.model.chat,
        workspace=entry.workspace if entry is not None else None,
        workspace_name=entry.name if entry is not None else None,
        index=service.workspaces,
        reuse=body.reuse or get_session_reuse(service.model.name),
        preamble=PREAMBLE if body.preamble is None else body.preamble,
        salt=principal.salt,
    )
    service.sessions.add(session, principal)
    if entry is not None and entry not in service.workspaces.list_visible(principal):  # it was removed meanwhile
        service.sessions.remove(session.id, principal)
        raise WorkspaceMissing(f"there is no workspace {entry.name!r} any more")
    return session


def ask(
    service: Service, session: ServerSession, body: AskBody, context: RequestContext, progress: ProgressListener
) -> EncodedAnswer:
    """Ask the model, and report the outcome. Runs in a thread."""
    timer = FirstTokenTimer()
    options = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_p", "seed", "stop", "clock")}
    try:
        answer = session.ask(
            body.question,
            prediction=get_prediction_text(body.prediction),
            context=context,
            progress=ProgressFanOut(timer, progress),
            **options,
        )
    except HunkError as fault:
        return _encode_fault(service, context, ASK, fault)
    outcome = RequestOutcome(
        ASK, context.tenant, "answered", answer.usage, answer.timings, first_token_ms=timer.first_token_ms
    )
    service.metering.on_outcome(outcome)
    timings = {name: round(value, 3) for name, value in answer.timings.items()}
    return EncodedAnswer(200, to_json(asdict(answer) | {"timings": timings}))


def apply(
    service: Service,
    session: ServerSession,
    body: SessionApplyBody,
    context: RequestContext,
    progress: ProgressListener,
) -> EncodedAnswer:
    """Merge an edit, and report the outcome. Runs in a thread."""
    timer = FirstTokenTimer()
    try:
        check_size(len(body.edit), "the edit", MAX_EDIT_BYTES)
        result = session.apply(
            body.edit,
            path=body.path,
            write=body.write,
            expected_sha256=body.expected_sha256,
            base_sha256=body.base_sha256,
            on_conflict=body.on_conflict,
            prediction=get_prediction_text(body.prediction),
            context=context,
            progress=ProgressFanOut(timer, progress),
            **body.options(),
        )
    except HunkError as fault:
        return _encode_fault(service, context, APPLY, fault)
    service.metering.on_outcome(RequestOutcome.from_result(APPLY, context.tenant, result, timer.first_token_ms))
    return encode_result(result)


def _encode_fault(service: Service, context: RequestContext, route: str, fault: HunkError) -> EncodedAnswer:
    service.metering.on_outcome(RequestOutcome.from_fault(route, context.tenant, fault))
    return encode_problem(fault)


MayApply = Annotated[RequestContext, Depends(require("apply"))]


class ReadAnswer(BaseModel):
    """The files that were put into the context."""

    files: list[ReadFile]


def build_session_routes(service: Service) -> APIRouter:
    """Build the routes of sessions. A tenant sees only its own sessions."""
    router = APIRouter(route_class=JsonRoute, tags=["sessions"], prefix="/sessions")
    sessions = service.sessions

    @router.post("", status_code=201, responses=describe_problems(WorkspaceMissing, TooManyRequests))
    async def begin_session(body: SessionBody, response: Response, context: MayApply) -> SessionState:
        """Start a session; if there are too many, the least recently used one ends."""
        session = start_session(service, context.principal, body)
        response.headers["Location"] = f"/sessions/{session.id}"
        return session.state()

    @router.get("/{session_id}", responses=describe_problems(SessionMissing))
    async def session_state(session_id: str, context: MayApply) -> SessionState:
        """Return a session's files, messages and usage."""
        return sessions.get(session_id, context.principal).state()

    @router.delete("/{session_id}", status_code=204, responses=describe_problems(SessionMissing))
    async def end_session(session_id: str, context: MayApply) -> None:
        """End a session."""
        sessions.remove(session_id, context.principal)

    @router.post(
        "/{session_id}/read",
        responses=describe_problems(
            Forbidden, SessionMissing, FileMissing, OutsideRoot, BadFile, TooLarge, SessionBusy
        ),
    )
    async def read(session_id: str, body: ReadBody, context: MayApply) -> ReadAnswer:
        """Put files and texts into the context, all or none, and return of each whether it has changed.

        `with_text` needs the scope `read`, too.
        """
        if body.with_text:
            context.principal.check("read")
        session = sessions.get(session_id, context.principal)

        def read_files(_: RequestContext) -> list[ReadFile]:
            return session.read(body.paths, texts=body.texts, forget=body.forget, with_text=body.with_text)

        return ReadAnswer(files=await run_in_thread(service, context, read_files))

    @router.post("/{session_id}/ask", responses={200: {"model": SessionAnswer}, **describe_problems(*ASKING)})
    async def ask_model(
        session_id: str,
        body: AskBody,
        request: Request,
        context: MayApply,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Ask the model, which sees the current files and all earlier messages."""
        session = sessions.get(session_id, context.principal)

        def work(context: RequestContext, progress: ProgressListener) -> EncodedAnswer:
            return ask(service, session, body, context, progress)

        sent = request.url.path.encode() + b"\n" + await request.body()
        return await answer_request(service, request, context, idempotency_key, sent, work, stream=body.stream)

    @router.post("/{session_id}/apply", responses={200: {"model": ApplyAnswer}, **describe_problems(*APPLYING)})
    async def apply_edit(
        session_id: str,
        body: SessionApplyBody,
        request: Request,
        context: MayApply,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Merge an edit into files of the session or of its workspace; the next question shows what was written."""
        session = sessions.get(session_id, context.principal)

        def work(context: RequestContext, progress: ProgressListener) -> EncodedAnswer:
            return apply(service, session, body, context, progress)

        sent = request.url.path.encode() + b"\n" + await request.body()
        return await answer_request(service, request, context, idempotency_key, sent, work, stream=body.stream)

    return router


ASKING = (BadRequest, SessionMissing, SessionBusy, TooLarge, ModelUnavailable)
APPLYING = (BadRequest, SessionMissing, SessionBusy, FileMissing, OutsideRoot, Stale, EditRefused, TooLarge)
