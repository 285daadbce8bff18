"""`/sessions`: an agent's conversation with the model about files, kept from question to question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel

from agent_runtime.access.principal import Principal
from agent_runtime.errors import (
    BadFile,
    BadRequest,
    EditRefused,
    FileMissing,
    Forbidden,
    ModelUnavailable,
    OutsideRoot,
    SessionBusy,
    SessionMissing,
    Stale,
    TooLarge,
    TooManyRequests,
    WorkspaceMissing,
)
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.access import needs
from agent_runtime.http.answer import Answer
from agent_runtime.http.apply_docs import ApplyAnswer
from agent_runtime.http.apply_stream import streamed
from agent_runtime.http.idempotency import IdempotencyKey
from agent_runtime.http.json_body import JsonRoute
from agent_runtime.http.openapi import problems
from agent_runtime.http.running import run, run_by_rule, run_watched
from agent_runtime.http.service import Service
from agent_runtime.http.session_bodies import AskBody, ReadBody, SessionApplyBody, SessionBody
from agent_runtime.http.session_work import apply, ask, begin
from agent_runtime.sessions import Answer as SessionAnswer
from agent_runtime.sessions import ReadFile, SessionState

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
