"""`/workspaces` and `/workspaces/{name}/...`: folders, their files, tokens and changes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from agent_runtime.errors import (
    BadFile,
    BadRequest,
    Cancelled,
    Conflict,
    FileMissing,
    Forbidden,
    NotIndexed,
    OutsideRoot,
    SnapshotGone,
    TooLarge,
    TooManyRequests,
    WorkspaceMissing,
)
from agent_runtime.request_context import RequestContext
from agent_runtime.server.auth import require
from agent_runtime.server.middleware import Drain
from agent_runtime.server.openapi import describe_problems
from agent_runtime.server.request_body import JsonRoute
from agent_runtime.server.schemas import Text
from agent_runtime.server.service import Service, wait_for_disconnect
from agent_runtime.server.views import (
    FileContent,
    SnapshotPage,
    WorkspaceChanges,
    WorkspaceStatus,
    build_snapshot_page,
    compare_snapshots,
    get_status,
    read_file_content,
    wait_for_change,
)
from agent_runtime.workspace.registry import MAX_LISTED, FilePage, WorkspaceEntry
from repo_cache.cache import RepoCache
from repo_cache.snapshot import Snapshot

MayRead = Annotated[RequestContext, Depends(require("read"))]
MayAdmin = Annotated[RequestContext, Depends(require("admin"))]


class WorkspaceBody(BaseModel):
    """A folder that is to become a workspace."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"root": "/srv/shop", "name": "shop"}]}
    )

    root: Text = Field(description="Absolute path of the folder, below the service's `--root` or an `--allow-root`.")
    name: Text | None = Field(None, description="Name of the workspace in requests. Null: the folder's name.")


class WorkspaceList(BaseModel):
    """The workspaces that the sender may see."""

    workspaces: list[WorkspaceStatus]


def build_workspace_routes(service: Service) -> APIRouter:
    """Build the routes that list, register and remove workspaces."""
    router = APIRouter(route_class=JsonRoute, tags=["workspaces"], prefix="/workspaces")
    workspaces = service.workspaces

    def remove_sessions(entry: WorkspaceEntry) -> None:
        service.sessions.end_matching(lambda session: session.workspace is entry.workspace)

    workspaces.add_remove_listener(remove_sessions)

    @router.get("")
    async def list_workspaces(context: MayRead) -> WorkspaceList:
        """List the workspaces: the tenant's own, and `default`, the folder with which the service was started."""
        return WorkspaceList(workspaces=[get_status(entry) for entry in workspaces.list_visible(context.principal)])

    @router.post(
        "",
        status_code=201,
        responses={200: {"description": "The workspace is registered already."}, **describe_problems(*REGISTERING)},
    )
    async def register_workspace(body: WorkspaceBody, response: Response, context: MayAdmin) -> WorkspaceStatus:
        """Make a folder a workspace; repeating this has no effect. It is registered until the service ends."""
        entry, is_new = await run_sync(
            workspaces.register, body.root, body.name, context.principal, limiter=service.threads
        )
        response.status_code = 201 if is_new else 200
        response.headers["Location"] = f"/workspaces/{entry.name}"
        return get_status(entry)

    @router.get("/{name}", responses=describe_problems(Forbidden, WorkspaceMissing))
    async def workspace_status(name: str, context: MayRead) -> WorkspaceStatus:
        """Return the state of a workspace."""
        return get_status(workspaces.get_entry(name, context.principal))

    @router.delete("/{name}", status_code=204, responses=describe_problems(Forbidden, WorkspaceMissing, Conflict))
    async def remove_workspace(name: str, context: MayAdmin) -> None:
        """Remove a workspace and end its sessions; its files are not changed."""
        await run_sync(workspaces.remove, name, context.principal, limiter=service.threads)

    return router


REGISTERING = (BadRequest, Forbidden, OutsideRoot, Conflict)

MAX_WAIT_SECONDS = 60.0
MAX_POLLS_OF_TENANT = 64
MAX_POLLS = 256
"""Limits of long polls, of one tenant and of all: each takes a connection."""

DRAIN_CHECK_SECONDS = 0.5
"""Seconds between checks whether the service is shutting down."""


class LongPolls:
    """The long polls of one service; used on one event loop only."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._by_tenant: Counter[str] = Counter()

    async def wait(self, request: Request, tenant: str, cache: RepoCache, since: Snapshot, timeout_s: float) -> None:
        """Wait until the cache has another snapshot, the time is over or the service shuts down.

        Raises TooManyRequests if too many requests wait, Cancelled if the client disconnects, NotIndexed if the
        workspace is removed.
        """
        until = time.monotonic() + timeout_s
        with self._count(tenant):
            change = asyncio.create_task(wait_for_change(cache, since))
            leaving = asyncio.create_task(wait_for_disconnect(request))
            try:
                while not self._drain.has_begun and (left := until - time.monotonic()) > 0:
                    await asyncio.wait(
                        (change, leaving), timeout=min(left, DRAIN_CHECK_SECONDS), return_when=asyncio.FIRST_COMPLETED
                    )
                    if change.done():
                        return change.result()
                    if leaving.done():
                        raise Cancelled("whoever asked has left")
            finally:
                for task in (change, leaving):
                    task.cancel()
                await asyncio.gather(change, leaving, return_exceptions=True)

    @contextmanager
    def _count(self, tenant: str) -> Iterator[None]:
        if self._by_tenant[tenant] >= MAX_POLLS_OF_TENANT or self._by_tenant.total() >= MAX_POLLS:
            raise TooManyRequests("too many requests wait for changes already; let one of them wait for all")
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1


INDEX_SECONDS = 5.0
"""Seconds that a snapshot waits for the first indexing; a longer one continues after the 503."""

DEFAULT_PAGE = 1000
"""Files of a page by default."""
After = Annotated[str, Query(description="The path after which the page begins: `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED, description="Maximum files of the page.")]
Version = Annotated[
    str | None, Query(description="The version of the snapshot: that of the page before. Null: the newest.")
]


def build_file_routes(service: Service) -> APIRouter:
    """Build the routes that show the files of a workspace."""
    router = APIRouter(tags=["workspaces"], prefix="/workspaces/{name}")
    waiters = LongPolls(service.drain)

    @router.get("/files", responses=describe_problems(Forbidden, WorkspaceMissing))
    async def list_files(name: str, context: MayRead, after: After = "", limit: Limit = DEFAULT_PAGE) -> FilePage:
        """List the files by path, except those that git ignores or that are too large to be edited."""
        entry = service.workspaces.get_entry(name, context.principal)
        return await run_sync(entry.listing.get_page, after, limit, limiter=service.threads)

    @router.get(
        "/files/{path:path}", responses=describe_problems(WorkspaceMissing, FileMissing, OutsideRoot, BadFile, TooLarge)
    )
    async def read_file(name: str, path: str, context: MayRead) -> FileContent:
        """Read one file as text, whether or not git ignores it."""
        entry = service.workspaces.get_entry(name, context.principal)
        return await run_sync(read_file_content, entry.workspace, path, limiter=service.threads)

    @router.get("/snapshot", responses=describe_problems(WorkspaceMissing, SnapshotGone, NotIndexed))
    async def snapshot(
        name: str,
        context: MayRead,
        after: After = "",
        limit: Limit = DEFAULT_PAGE,
        version: Version = None,
        spans: Annotated[bool, Query(description="Add the ends of spans; a page then has at most 200 files.")] = False,
    ) -> SnapshotPage:
        """Return a version of the workspace, and the hash and number of tokens of each file.

        The first request for a workspace starts its indexing, and may be answered 503 until that is done.
        """
        entry = service.workspaces.get_entry(name, context.principal)

        def page() -> SnapshotPage:
            found = entry.wait_for_cache(INDEX_SECONDS).snapshot() if version is None else entry.snapshots.find(version)
            return build_snapshot_page(entry.snapshots, found, after=after, limit=limit, spans=spans)

        return await run_sync(page, limiter=service.threads)

    @router.get("/changes", responses=describe_problems(WorkspaceMissing, SnapshotGone, TooManyRequests, NotIndexed))
    async def changes(
        name: str,
        request: Request,
        context: MayRead,
        since: Annotated[str, Query(description="A version from a snapshot or from an answer of this route.")],
        timeout_s: Annotated[
            float, Query(ge=0.0, le=MAX_WAIT_SECONDS, description="Seconds to wait for a change.")
        ] = 25.0,
    ) -> WorkspaceChanges:
        """Return the changes since a version, as soon as there are any; without a change, after `timeout_s`.

        `version` of the answer is the next `since`. 410: that version is no longer stored; read the snapshot again.
        """
        entry = service.workspaces.get_entry(name, context.principal)
        cache, before = await run_sync(
            lambda: (entry.wait_for_cache(INDEX_SECONDS), entry.snapshots.find(since)), limiter=service.threads
        )
        if cache.snapshot().version == before.version:
            await waiters.wait(request, context.tenant, cache, before, timeout_s)
        return await run_sync(compare_snapshots, entry.snapshots, before, cache.snapshot(), limiter=service.threads)

    return router
