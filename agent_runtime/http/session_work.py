"""Does what a request asks of a session, from its body to its answer; runs in a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

from pydantic_core import to_json

from agent_runtime.access.principal import Principal
from agent_runtime.errors import HunkError, WorkspaceMissing
from agent_runtime.files.limits import MAX_EDIT_BYTES, check_size
from agent_runtime.generation.relay import FirstToken
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.answer import Answer, answer_of, answer_of_fault
from agent_runtime.http.schema import text_of
from agent_runtime.http.service import Service
from agent_runtime.http.session_bodies import AskBody, SessionApplyBody, SessionBody
from agent_runtime.models.catalogue import session_reuse
from agent_runtime.sessions import PREAMBLE, Session
from agent_runtime.telemetry.observer import Finished

ASK = "/sessions/{session_id}/ask"
APPLY = "/sessions/{session_id}/apply"
"""The routes, as the observer is told them."""


def begin(service: Service, principal: Principal, body: SessionBody) -> Session:
    """A new session of the principal's; raises WorkspaceMissing, TooManyRequests."""
    named = body.workspace is not None or service.workspaces.has_default
    entry = service.workspaces.entry(body.workspace, principal) if named else None
    session = Session(
        service.applier,
        service.model.chat,
        workspace=entry.workspace if entry is not None else None,
        workspace_name=entry.name if entry is not None else None,
        known=service.workspaces,
        reuse=body.reuse or session_reuse(service.model.name),
        preamble=PREAMBLE if body.preamble is None else body.preamble,
        salt=principal.salt,
    )
    service.sessions.add(session, principal)
    if entry is not None and entry not in service.workspaces.seen_by(principal):  # it was removed meanwhile
        service.sessions.remove(session.id, principal)
        raise WorkspaceMissing(f"there is no workspace {entry.name!r} any more")
    return session


def ask(service: Service, principal: Principal, session: Session, body: AskBody, watcher: Watcher) -> Answer:
    """The model's answer, and the observer is told of it."""

    def asked(watched: Watcher) -> tuple[Answer, Finished]:
        given = {name: getattr(body, name) for name in ("max_tokens", "temperature", "top_p", "seed", "stop", "clock")}
        answer = session.ask(body.question, prediction=text_of(body.prediction), watcher=watched, **given)
        finished = Finished(ASK, principal.tenant, "answered", answer.usage, answer.timings)
        told = asdict(answer) | {"timings": {name: round(value, 3) for name, value in answer.timings.items()}}
        return Answer(200, to_json(told)), finished

    return _told(service, principal, ASK, asked, watcher)


def apply(service: Service, principal: Principal, session: Session, body: SessionApplyBody, watcher: Watcher) -> Answer:
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
