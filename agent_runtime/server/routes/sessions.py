"""`/sessions`: conversations of an agent with the model about files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from agent_runtime.access import Principal
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
from agent_runtime.limits import MAX_EDIT_BYTES, check_size
from agent_runtime.models.catalogue import get_session_reuse
from agent_runtime.progress import FirstToken, Watcher
from agent_runtime.request_context import Finished
from agent_runtime.server.auth import needs
from agent_runtime.server.dependencies import Service
from agent_runtime.server.events import streamed
from agent_runtime.server.executor import run, run_by_rule, run_watched
from agent_runtime.server.idempotency import IdempotencyKey
from agent_runtime.server.openapi import ApplyAnswer, problems
from agent_runtime.server.request_body import JsonRoute
from agent_runtime.server.responses import Answer, answer_of, answer_of_fault
from agent_runtime.server.schemas import AskBody, ReadBody, SessionApplyBody, SessionBody, text_of
from agent_runtime.session import PREAMBLE, ReadFile, ServerSession, SessionAnswer, SessionState

ASK = "/sessions/{session_id}/ask"
APPLY = "/sessions/{session_id}/apply"
"""The routes, as the observer is told them."""


def begin(service: Service, principal: Principal, body: SessionBody) -> ServerSession:
    """A new session of the principal's; raises WorkspaceMissing, TooManyRequests."""
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


def ask(service: Service, principal: Principal, session: ServerSession, body: AskBody, watcher: Watcher) -> Answer:
    """The model's answer, and the observer is told of it."""

    def asked(watched: Watcher) -> tuple[Answer, Finished]:
        given = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_p", "seed", "stop", "clock")}
        answer = session.ask(body.question, prediction=text_of(body.prediction), watcher=watched, **given)
        finished = Finished(ASK, principal.tenant, "answered", answer.usage, answer.timings)
        told = asdict(answer) | {"timings": {name: round(value, 3) for name, value in answer.timings.items()}}
        return Answer(200, to_json(told)), finished

    return _told(service, principal, ASK, asked, watcher)


def apply(
    service: Service, principal: Principal, session: ServerSession, body: SessionApplyBody, watcher: Watcher
) -> Answer:
    """What the edit came to, and the observer is told of it."""

    def applied(watched: Watcher) -> tuple[Answer, Finished]:
        check_size(len(body.edit), "the edit", MAX_EDIT_BYTES)
        result = session.apply(
            body.edit,
            path=body.path,
            write=body.write,
            expected_sha256=body.expected_sha256,
            prediction=text_of(body.prediction),
            watcher=watched,
            **body.options(),
        )
        return answer_of(result), Finished.with_result(APPLY, principal.tenant, result)

    return _told(service, principal, APPLY, applied, watcher)


def _told(
    service: Service,
    principal: Principal,
    route: str,
    work: Callable[[Watcher], tuple[Answer, Finished]],
    watcher: Watcher,
) -> Answer:
    watched = FirstToken(watcher)
    try:
        answer, finished = work(watched)
    except HunkError as fault:
        service.observer.finished(Finished.with_fault(route, principal.tenant, fault))
        return answer_of_fault(fault)
    service.observer.finished(replace(finished, first_token_ms=watched.after_ms))
    return answer


MayApply = Annotated[Principal, Depends(needs("apply"))]

Work = Callable[[Watcher], Answer]


class ReadAnswer(BaseModel):
    """The files that were put into the context."""

    files: list[ReadFile]


def sessions_routes(service: Service) -> APIRouter:
    """The routes of sessions; each tenant has its own."""
    router = APIRouter(route_class=JsonRoute, tags=["sessions"], prefix="/sessions")
    sessions = service.sessions

    @router.post("", status_code=201, responses=problems(WorkspaceMissing, TooManyRequests))
    async def begin_session(body: SessionBody, response: Response, principal: MayApply) -> SessionState:
        """Begin a session; where there are too many, the one that was used longest ago ends."""
        session = begin(service, principal, body)
        response.headers["Location"] = f"/sessions/{session.id}"
        return session.state()

    @router.get("/{session_id}", responses=problems(SessionMissing))
    async def session_state(session_id: str, principal: MayApply) -> SessionState:
        """Show what a session holds: files, what was said, what it has used."""
        return sessions.get(session_id, principal).state()

    @router.delete("/{session_id}", status_code=204, responses=problems(SessionMissing))
    async def end_session(session_id: str, principal: MayApply) -> None:
        """End a session."""
        sessions.remove(session_id, principal)

    @router.post(
        "/{session_id}/read",
        responses=problems(Forbidden, SessionMissing, FileMissing, OutsideRoot, BadFile, TooLarge, SessionBusy),
    )
    async def read(session_id: str, body: ReadBody, principal: MayApply) -> ReadAnswer:
        """Put files and texts into the context, all or none, and tell of each whether it has changed.

        `with_text` needs the scope `read`, too.
        """
        if body.with_text:
            principal.check("read")
        session = sessions.get(session_id, principal)
        work = partial(session.read, body.paths, texts=body.texts, forget=body.forget, with_text=body.with_text)
        return ReadAnswer(files=await run_by_rule(service, work))

    @router.post("/{session_id}/ask", responses={200: {"model": SessionAnswer}, **problems(*ASKING)})
    async def ask_model(
        session_id: str,
        body: AskBody,
        request: Request,
        principal: MayApply,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Ask the model, which sees the files as they are now and all that was said."""
        work = partial(ask, service, principal, sessions.get(session_id, principal), body)
        return await answered(request, principal, idempotency_key, work, stream=body.stream)

    @router.post("/{session_id}/apply", responses={200: {"model": ApplyAnswer}, **problems(*APPLYING)})
    async def apply_edit(
        session_id: str,
        body: SessionApplyBody,
        request: Request,
        principal: MayApply,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Merge an edit into files of the session or of its workspace; the next question shows what was written."""
        work = partial(apply, service, principal, sessions.get(session_id, principal), body)
        return await answered(request, principal, idempotency_key, work, stream=body.stream)

    async def answered(
        request: Request, principal: Principal, key: str | None, work: Work, *, stream: bool
    ) -> Response:
        sent = request.url.path.encode() + b"\n" + await request.body()
        once = partial(service.answers.once, principal, key, sent)
        if stream:

            async def followed(watcher: Watcher) -> Answer:
                return await once(partial(run_watched, service, work, watcher))

            return await streamed(request, followed)
        answer: Answer = await once(partial(run, service, request, work))
        return answer.response()

    return router


ASKING = (BadRequest, SessionMissing, SessionBusy, TooLarge, ModelUnavailable)
APPLYING = (BadRequest, SessionMissing, SessionBusy, FileMissing, OutsideRoot, Stale, EditRefused, TooLarge)
