"""What there is to see of a workspace: its state, its files, their tokens, and what changed."""

from agent_runtime.browsing.changes import MAX_CHANGES, ChangedFile, WorkspaceChanges, changed, changes_between
from agent_runtime.browsing.files import FileContent, file_content
from agent_runtime.browsing.snapshots import SnapshotFile, SnapshotPage, snapshot_page
from agent_runtime.browsing.status import WorkspaceState, WorkspaceStatus, status_of

__all__ = [
    "MAX_CHANGES",
    "ChangedFile",
    "FileContent",
    "SnapshotFile",
    "SnapshotPage",
    "WorkspaceChanges",
    "WorkspaceState",
    "WorkspaceStatus",
    "changed",
    "changes_between",
    "file_content",
    "snapshot_page",
    "status_of",
]
