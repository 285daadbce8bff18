"""The state of a workspace: whether its files are known as tokens, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agent_runtime.workspaces.registered import NOT_LOADED, Registered
from agent_runtime.workspaces.watched import WatchState

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


def status_of(entry: Registered) -> WorkspaceStatus:
    """Of a workspace, now; begins nothing and waits for nothing."""
    watched = entry.watched
    if watched is None:
        return WorkspaceStatus(
            entry.name, entry.root, "no-model" if entry.why_not == NOT_LOADED else "unwatched", entry.why_not
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
        entry.given.give(snapshot),
    )
