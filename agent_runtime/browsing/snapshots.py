"""A snapshot of a workspace's files as tokens and spans, page by page."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from agent_runtime.workspaces.registered import GivenSnapshots
from repo_cache.snapshot import Snapshot
from repo_cache.types import FileTokens

MAX_OF_PAGE = 10_000
MAX_WITH_SPANS = 200
"""Of a page with spans: those of a file that nobody has asked about are cut then, which is a parse."""


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


def snapshot_page(given: GivenSnapshots, snapshot: Snapshot, *, after: str, limit: int, spans: bool) -> SnapshotPage:
    """The files of a snapshot behind the path `after`, up to `limit`, and no more than a page may have."""
    limit = min(limit, MAX_WITH_SPANS if spans else MAX_OF_PAGE)
    paths = sorted(snapshot)
    first = bisect_right(paths, after) if after else 0
    found = paths[first : first + limit]
    return SnapshotPage(
        given.give(snapshot),
        len(snapshot),
        snapshot.num_tokens,
        tuple(_file(path, snapshot[path], spans=spans) for path in found),
        found[-1] if first + limit < len(paths) else None,
    )


def _file(path: str, tokens: FileTokens, *, spans: bool) -> SnapshotFile:
    ends = tuple(tokens.spans.ends.tolist()) if spans else None
    return SnapshotFile(path, tokens.content_hash, len(tokens), ends)
