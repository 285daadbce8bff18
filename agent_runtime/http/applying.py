"""Does one apply of a request's body, from the files to the answer."""

from __future__ import annotations

from agent_runtime.access.principal import Principal
from agent_runtime.errors import HunkError, Unsupported
from agent_runtime.generation.relay import FirstToken
from agent_runtime.generation.watcher import Watcher
from agent_runtime.http.answer import Answer, answer_of, answer_of_fault
from agent_runtime.http.schema import ApplyBody
from agent_runtime.http.service import Service
from agent_runtime.http.work import work_of
from agent_runtime.telemetry.observer import Finished
from agent_runtime.types import ApplyResult
from agent_runtime.workspaces.writing import written


def apply_body(service: Service, principal: Principal, body: ApplyBody, route: str, watcher: Watcher) -> Answer:
    """Merge the edit, write the files where that is asked for, and tell the observer; runs in a thread."""
    watched = FirstToken(watcher)
    try:
        result = _applied(service, principal, body, watched)
    except HunkError as fault:
        service.observer.finished(Finished.with_fault(route, principal.tenant, fault))
        return answer_of_fault(fault)
    service.observer.finished(Finished.with_result(route, principal.tenant, result, watched.after_ms))
    return answer_of(result)


def _applied(service: Service, principal: Principal, body: ApplyBody, watcher: Watcher) -> ApplyResult:
    if body.model is not None and body.model != service.model.name:
        raise Unsupported(f"this service runs {service.model.name!r}, not {body.model!r}", field="model")
    workspace = service.workspaces.find(body.workspace, principal)
    result = work_of(service.applier, workspace, body, principal.salt)(watcher)
    if not body.write:
        return result
    assert workspace is not None, "`work_of` refuses to write without"
    return written(workspace, result, watcher)
