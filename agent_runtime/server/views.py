"""What happened to the files of a workspace between two versions, and waiting for something to happen."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from agent_runtime.errors import NotIndexed, SnapshotGone
from agent_runtime.workspaces.registered import GivenSnapshots
from repo_cache.cache import RepoCache
from repo_cache.errors import CacheClosed
from repo_cache.snapshot import Snapshot
from repo_cache.types import ChangeKind, FileChange

MAX_CHANGES = 10_000
"""Of one answer; where more changed, a snapshot tells it as well."""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """What became of one file; hashes are "" where there is none. `old_path` is where a renamed file was."""

    path: str
    kind: ChangeKind
    sha256_before: str
    sha256: str
    tokens: int
    old_path: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceChanges:
    """What happened from one version to another; the same version twice where nothing has in the time."""

    since: str
    version: str
    changes: tuple[ChangedFile, ...]


def changes_between(given: GivenSnapshots, since: Snapshot, until: Snapshot) -> WorkspaceChanges:
    """What happened from one snapshot to a later one of the same cache; raises SnapshotGone where it is too much."""
    changes = until.changes(since)
    if len(changes) > MAX_CHANGES:
        raise SnapshotGone(f"{len(changes)} files have changed since, over {MAX_CHANGES}: read the snapshot again")
    return WorkspaceChanges(given.give(since), given.give(until), tuple(_changed(change) for change in changes))


async def changed(cache: RepoCache, since: Snapshot) -> None:
    """Until the cache has another snapshot than this; raises NotIndexed where it is closed meanwhile."""
    with suppress(CacheClosed), cache.subscribe() as updates:
        if cache.snapshot().version != since.version:  # it changed before we listened
            return
        async for update in updates:
            if update.snapshot.version != since.version:
                return
    raise NotIndexed("the workspace is not watched any more: it was removed, or the service ends")


def _changed(change: FileChange) -> ChangedFile:
    return ChangedFile(
        change.path,
        change.kind,
        change.before.content_hash if change.before is not None else "",
        change.after.content_hash if change.after is not None else "",
        len(change.after) if change.after is not None else 0,
        change.old_path,
    )
