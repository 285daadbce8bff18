"""`POST /apply`: an edit, or several, merged into their files."""

from __future__ import annotations

from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Request

from agent_runtime.errors import Unsupported
from agent_runtime.http.access import needs
from agent_runtime.http.running import run
from agent_runtime.http.schema import ApplyBody
from agent_runtime.http.service import Service
from agent_runtime.http.work import Work, work_of
from agent_runtime.principal import Principal
from agent_runtime.shapes import result_to_json

MayApply = Annotated[Principal, Depends(needs("apply"))]


def apply_routes(service: Service) -> APIRouter:
    """The routes that merge edits."""
    router = APIRouter(tags=["apply"])

    @router.post("/apply")
    async def apply(body: ApplyBody, request: Request, principal: MayApply) -> dict[str, Any]:
        """Merge an edit into its file, or into several files: all or none."""
        work = await run_sync(_prepare, service, principal, body, limiter=service.threads)
        return result_to_json(await run(service, request, work))

    return router


def _prepare(service: Service, principal: Principal, body: ApplyBody) -> Work:
    if body.model is not None and body.model != service.model.name:
        raise Unsupported(f"this service runs {service.model.name!r}, not {body.model!r}", field="model")
    return work_of(service.applier, service.workspaces.find(None, principal), body, principal.salt)
