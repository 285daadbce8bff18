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
"""Maximum changes in one answer; with more, a client reads the snapshot again."""


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A change of one file. A hash is "" where the file does not exist. `old_path`: the path before a rename."""

    path: str
    kind: ChangeKind
    sha256_before: str
    sha256: str
    tokens: int
    old_path: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceChanges:
    """The changes from one version to another; both versions are the same if nothing changed in time."""

    since: str
    version: str
    changes: tuple[ChangedFile, ...]


def compare_snapshots(given: SnapshotHistory, since: Snapshot, until: Snapshot) -> WorkspaceChanges:
    """Return the changes between two snapshots of one cache; raises SnapshotGone if there are too many."""
    changes = until.changes(since)
    if len(changes) > MAX_CHANGES:
        raise SnapshotGone(f"{len(changes)} files have changed since, over {MAX_CHANGES}: read the snapshot again")
    return WorkspaceChanges(given.add(since), given.add(until), tuple(_build_change(change) for change in changes))


async def wait_for_change(cache: RepoCache, since: Snapshot) -> None:
    """Wait until the cache has a newer snapshot; raises NotIndexed if it is closed meanwhile."""
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
    """A file: `text` with its BOM and line endings, its encoding, and the hash and size of its bytes."""

    path: str
    text: str
    encoding: str
    sha256: str
    size: int


def read_file_content(workspace: Workspace, path: str) -> FileContent:
    """Read a file, whether ignored or not; raises as `Workspace.read`, and BadFile if it is not text."""
    data = workspace.read_and_keep(path)
    encoding = decode(data, path).encoding
    return FileContent(path, data.decode(encoding), encoding, sha256(data).hexdigest(), len(data))


MAX_OF_PAGE = 10_000
MAX_WITH_SPANS = 200
"""Maximum files of a page with spans: a file is parsed when its spans are first requested."""


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file: the hash of its bytes, its number of tokens, and the token index at which each span ends."""

    path: str
    sha256: str
    tokens: int
    spans: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPage:
    """Some files of one version; `num_files` and `num_tokens` count the whole snapshot. `next`: as in `FilePage`."""

    version: str
    num_files: int
    num_tokens: int
    files: tuple[SnapshotFile, ...]
    next: str | None


def build_snapshot_page(
    given: SnapshotHistory, snapshot: Snapshot, *, after: str, limit: int, spans: bool
) -> SnapshotPage:
    """Return the files of a snapshot after the path `after`, at most `limit` and at most a full page."""
    limit = min(limit, MAX_WITH_SPANS if spans else MAX_OF_PAGE)
    paths = sorted(snapshot)
    first = bisect_right(paths, after) if after else 0
    found = paths[first : first + limit]
    return SnapshotPage(
        given.add(snapshot),
        len(snapshot),
        snapshot.num_tokens,
        tuple(_build_file(path, snapshot[path], spans=spans) for path in found),
        found[-1] if first + limit < len(paths) else None,
    )


def _build_file(path: str, tokens: FileTokens, *, spans: bool) -> SnapshotFile:
    ends = tuple(tokens.spans.ends.tolist()) if spans else None
    return SnapshotFile(path, tokens.content_hash, len(tokens), ends)


WorkspaceState = WatchState | Literal["no-model", "unwatched"]
"""`no-model`: files are tokenised once the model is loaded. `unwatched`: never, as the service was started without."""


@dataclass(frozen=True, slots=True)
class WorkspaceStatus:
    """The state of a workspace. The numbers and `version` are set while it is `watching`.

    detail: why it is not, in words, or "". skipped: number of files without tokens, such as binary ones. indexed: the
    share of the bytes that is indexed so far, while `indexing`.
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


def get_status(entry: WorkspaceEntry) -> WorkspaceStatus:
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
