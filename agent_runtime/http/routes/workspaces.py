"""`/workspaces`: which folders there are, and more of them."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, ConfigDict, Field

from agent_runtime.access.principal import Principal
from agent_runtime.browsing import WorkspaceStatus, status_of
from agent_runtime.errors import BadRequest, Conflict, Forbidden, OutsideRoot, WorkspaceMissing
from agent_runtime.http.access import needs
from agent_runtime.http.json_body import JsonRoute
from agent_runtime.http.openapi import problems
from agent_runtime.http.schema import Text
from agent_runtime.http.service import Service
from agent_runtime.workspaces.registered import Registered

MayRead = Annotated[Principal, Depends(needs("read"))]
MayAdmin = Annotated[Principal, Depends(needs("admin"))]


class WorkspaceBody(BaseModel):
    """A folder to be registered."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"root": "/srv/shop", "name": "shop"}]}
    )

    root: Text = Field(description="Its absolute path; it lies below the service's `--root` or an `--allow-root`.")
    name: Text | None = Field(None, description="What requests call it. Null: as the folder is called.")


class WorkspaceList(BaseModel):
    """All that the sender may see."""

    workspaces: list[WorkspaceStatus]


def workspaces_routes(service: Service) -> APIRouter:
    """The routes that list, register and remove folders."""
    router = APIRouter(route_class=JsonRoute, tags=["workspaces"], prefix="/workspaces")
    workspaces = service.workspaces

    def remove_sessions(entry: Registered) -> None:
        service.sessions.end_where(lambda session: session.workspace is entry.workspace)

    workspaces.when_removed(remove_sessions)

    @router.get("")
    async def list_workspaces(principal: MayRead) -> WorkspaceList:
        """Say which workspaces there are: the tenant's own, and `default`, with which the service was started."""
        return WorkspaceList(workspaces=[status_of(entry) for entry in workspaces.seen_by(principal)])

    @router.post(
        "", status_code=201, responses={200: {"description": "It is there already."}, **problems(*REGISTERING)}
    )
    async def register_workspace(body: WorkspaceBody, response: Response, principal: MayAdmin) -> WorkspaceStatus:
        """Make a folder a workspace; again the same does nothing. It is forgotten when the service ends."""
        entry, is_new = await run_sync(workspaces.register, body.root, body.name, principal, limiter=service.threads)
        response.status_code = 201 if is_new else 200
        response.headers["Location"] = f"/workspaces/{entry.name}"
        return status_of(entry)

    @router.get("/{name}", responses=problems(Forbidden, WorkspaceMissing))
    async def workspace_status(name: str, principal: MayRead) -> WorkspaceStatus:
        """Say what is known of a workspace."""
        return status_of(workspaces.entry(name, principal))

    @router.delete("/{name}", status_code=204, responses=problems(Forbidden, WorkspaceMissing, Conflict))
    async def remove_workspace(name: str, principal: MayAdmin) -> None:
        """Forget a workspace and end its sessions; its files stay as they are."""
        await run_sync(workspaces.remove, name, principal, limiter=service.threads)

    return router


REGISTERING = (BadRequest, Forbidden, OutsideRoot, Conflict)
