"""Views of a workspace: status, file content, snapshot pages and changes."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from agent_runtime.apply.result import decode
from agent_runtime.errors import NotIndexed, SnapshotGone
from agent_runtime.workspace.index import WatchState
from agent_runtime.workspace.registry import NOT_LOADED, SnapshotHistory, WorkspaceEntry
from agent_runtime.workspace.workspace import Workspace
from repo_cache.cache import RepoCache
from repo_cache.errors import CacheClosed
from repo_cache.snapshot import Snapshot
from repo_cache.types import ChangeKind, FileChange, FileTokens

MAX_CHANGES = 10_000
"""Maximum number of changes in one answer; for more, a snapshot is as good."""


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


def changes_between(given: SnapshotHistory, since: Snapshot, until: Snapshot) -> WorkspaceChanges:
    """Return the changes between two snapshots of one cache; raises SnapshotGone if there are too many."""
    changes = until.changes(since)
    if len(changes) > MAX_CHANGES:
        raise SnapshotGone(f"{len(changes)} files have changed since, over {MAX_CHANGES}: read the snapshot again")
    return WorkspaceChanges(given.add(since), given.add(until), tuple(_build_change(change) for change in changes))


async def wait_for_change(cache: RepoCache, since: Snapshot) -> None:
    """Until the cache has another snapshot than this; raises NotIndexed where it is closed meanwhile."""
    with suppress(CacheClosed), cache.subscribe() as updates:
        if cache.snapshot().version != since.version:  # it changed before we listened
            return
        async for update in updates:
            if update.snapshot.version != since.version:
                return
    raise NotIndexed("the workspace is not watched any more: it was removed, or the service ends")


def _build_change(change: FileChange) -> ChangedFile:
    return ChangedFile(
        change.path,
        change.kind,
        change.before.content_hash if change.before is not None else "",
        change.after.content_hash if change.after is not None else "",
        len(change.after) if change.after is not None else 0,
        change.old_path,
    )


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file; `text`, a BOM and line endings included, in `encoding` gives the bytes that hash and size are of."""

    path: str
    text: str
    encoding: str
    sha256: str
    size: int


def file_content(workspace: Workspace, path: str) -> FileContent:
    """A file, ignored or not; raises what `Workspace.read` raises, BadFile for one that is no text."""
    data = workspace.read(path)
    encoding = decode(data, path).encoding
    return FileContent(path, data.decode(encoding), encoding, sha256(data).hexdigest(), len(data))


MAX_OF_PAGE = 10_000
MAX_WITH_SPANS = 200
"""Maximum files of a page with spans: spans of a file are cut on first use, which parses it."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file: the hash of its bytes, how many tokens it has, and where its spans end in them, ascending."""

    path: str
    sha256: str
    tokens: int
    spans: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Some files of one version; `num_files` and `num_tokens` are of all. `next`: as in `FilePage`."""

    version: str
    num_files: int
    num_tokens: int
    files: tuple[SnapshotFile, ...]
    next: str | None


def snapshot_page(given: SnapshotHistory, snapshot: Snapshot, *, after: str, limit: int, spans: bool) -> SnapshotPage:
    """Return the files of a snapshot after the path `after`, at most `limit`, and at most a page."""
    limit = min(limit, MAX_WITH_SPANS if spans else MAX_OF_PAGE)
    paths = sorted(snapshot)
    first = bisect_right(paths, after) if after else 0
    found = paths[first : first + limit]
    return SnapshotPage(
        given.add(snapshot),
        len(snapshot),
        snapshot.num_tokens,
        tuple(_file(path, snapshot[path], spans=spans) for path in found),
        found[-1] if first + limit < len(paths) else None,
    )


def _file(path: str, tokens: FileTokens, *, spans: bool) -> SnapshotFile:
    ends = tuple(tokens.spans.ends.tolist()) if spans else None
    return SnapshotFile(path, tokens.content_hash, len(tokens), ends)


WorkspaceState = WatchState | Literal["no-model", "unwatched"]
"""`no-model`: files become tokens once the model is loaded. `unwatched`: they never do, as the service was told so."""


@dataclass(frozen=True, slots=True)
class WorkspaceStatus:
    """What is known of a workspace. Numbers and `version` are there while it is `watching`.

    detail: in words, why nothing is known, or "". skipped: files that have no tokens, such as binary ones. indexed: the
    share of the bytes that are indexed already, while `indexing`.
    """

    name: str
    root: str
    state: WorkspaceState
    detail: str = ""
    files: int | None = None
    tokens: int | None = None
    skipped: int | None = None
    version: str | None = None
    indexed: float | None = None


def status_of(entry: WorkspaceEntry) -> WorkspaceStatus:
    """Return the state of a workspace; starts nothing and waits for nothing."""
    watched = entry.index
    if watched is None:
        return WorkspaceStatus(
            entry.name,
            entry.root,
            "no-model" if entry.unavailable_reason == NOT_LOADED else "unwatched",
            entry.unavailable_reason,
        )
    cache, progress = watched.cache, watched.progress
    if cache is None:
        done = None if progress is None else progress.num_bytes / max(1, progress.of_bytes)
        return WorkspaceStatus(entry.name, entry.root, watched.state, watched.fault, indexed=done)
    snapshot = cache.snapshot()
    return WorkspaceStatus(
        entry.name,
        entry.root,
        watched.state,
        " ".join(notice.message for notice in cache.notices[-1:]),
        len(snapshot),
        snapshot.num_tokens,
        len(snapshot.skipped),
        entry.snapshots.add(snapshot),
    )
