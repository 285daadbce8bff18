"""Puts what was merged in its place, where that was asked for."""

from __future__ import annotations

from dataclasses import replace

from agent_runtime.generation.watcher import Watcher
from agent_runtime.types import ApplyResult
from agent_runtime.workspaces.workspace import Workspace


def written(workspace: Workspace, result: ApplyResult, watcher: Watcher) -> ApplyResult:
    """Write the merged files, all or none, and say so; nothing where a check rejected them or nothing is to be done.

    Raises Stale, BadFile or OutsideRoot as `Workspace.write` does, and what the watcher says where nobody waits any
    more: then nothing is written.
    """
    if result.status != "merged":
        return result
    if watcher.is_left:
        raise watcher.ends_with
    workspace.write(result.files)
    return replace(result, written=True)
