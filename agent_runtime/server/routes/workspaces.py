"""`/workspaces/{name}/...`: the files of a workspace, as names, as text, as tokens, and as they change."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, Query, Request

from agent_runtime.access.principal import Principal
from agent_runtime.browsing import (
    FileContent,
    SnapshotPage,
    WorkspaceChanges,
    changes_between,
    file_content,
    snapshot_page,
)
from agent_runtime.errors import (
    BadFile,
    FileMissing,
    Forbidden,
    NotIndexed,
    OutsideRoot,
    SnapshotGone,
    TooLarge,
    TooManyRequests,
    WorkspaceMissing,
)
from agent_runtime.http.access import needs
from agent_runtime.http.openapi import problems
from agent_runtime.http.service import Service
from agent_runtime.http.waiting import MAX_WAIT_SECONDS, Waiters
from agent_runtime.workspaces.listing import MAX_LISTED, FilePage
from agent_runtime.workspaces.registered import Registered
from repo_cache.cache import RepoCache
from repo_cache.snapshot import Snapshot

INDEX_SECONDS = 5.0
"""For which a snapshot waits for the first indexing; a long one goes on behind the answer that it is not there yet."""

LISTED = 1000
"""Files of a page where the request does not say."""

MayRead = Annotated[Principal, Depends(needs("read"))]
After = Annotated[str, Query(description="The path behind which the page begins: `next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED, description="The most files of a page.")]
Version = Annotated[str | None, Query(description="Of which version; that of the page before. Null: the newest.")]


def files_routes(service: Service) -> APIRouter:
    """The routes that show what is in a workspace."""
    router = APIRouter(tags=["workspaces"], prefix="/workspaces/{name}")
    waiters = Waiters(service.drain)

    @router.get("/files", responses=problems(Forbidden, WorkspaceMissing))
    async def list_files(name: str, principal: MayRead, after: After = "", limit: Limit = LISTED) -> FilePage:
        """List the files by path, those left out that git ignores or that are too large to be edited."""
        entry = service.workspaces.entry(name, principal)
        return await run_sync(entry.listing.page, after, limit, limiter=service.threads)

    @router.get("/files/{path:path}", responses=problems(WorkspaceMissing, FileMissing, OutsideRoot, BadFile, TooLarge))
    async def read_file(name: str, path: str, principal: MayRead) -> FileContent:
        """Read one file as text, whether or not git ignores it."""
        entry = service.workspaces.entry(name, principal)
        return await run_sync(file_content, entry.workspace, path, limiter=service.threads)

    @router.get("/snapshot", responses=problems(WorkspaceMissing, SnapshotGone, NotIndexed))
    async def snapshot(
        name: str,
        principal: MayRead,
        after: After = "",
        limit: Limit = LISTED,
        version: Version = None,
        spans: Annotated[bool, Query(description="Tell where spans end, too; a page then has 200 files.")] = False,
    ) -> SnapshotPage:
        """Show the files as tokens: a version, and the hash and number of tokens of each file.

        The first one of a workspace has it indexed, and may be answered 503 until that is done.
        """
        entry = service.workspaces.entry(name, principal)

        def page() -> SnapshotPage:
            found = entry.indexed(INDEX_SECONDS).snapshot() if version is None else entry.given.given(version)
            return snapshot_page(entry.given, found, after=after, limit=limit, spans=spans)

        return await run_sync(page, limiter=service.threads)

    @router.get("/changes", responses=problems(WorkspaceMissing, SnapshotGone, TooManyRequests, NotIndexed))
    async def changes(
        name: str,
        request: Request,
        principal: MayRead,
        since: Annotated[str, Query(description="A version that a snapshot or an answer of this route told.")],
        timeout_s: Annotated[
            float, Query(ge=0.0, le=MAX_WAIT_SECONDS, description="How long to wait for a change.")
        ] = 25.0,
    ) -> WorkspaceChanges:
        """Tell what changed since a version, as soon as anything has; without a change, after `timeout_s`.

        `version` of the answer is the next `since`. 410: that version is not kept any more; read the snapshot again.
        """
        entry = service.workspaces.entry(name, principal)
        cache, before = await run_sync(_since, entry, since, limiter=service.threads)
        if cache.snapshot().version == before.version:
            await waiters.wait(request, principal, cache, before, timeout_s)
        return await run_sync(changes_between, entry.given, before, cache.snapshot(), limiter=service.threads)

    return router


def _since(entry: Registered, since: str) -> tuple[RepoCache, Snapshot]:
    return entry.indexed(INDEX_SECONDS), entry.given.given(since)
