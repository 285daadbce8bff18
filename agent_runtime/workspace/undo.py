"""Undoes a write that the history has kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agent_runtime.errors import Stale
from agent_runtime.workspace.history import History, Write, keep_old
from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.sandbox import ABSENT, ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, write_files


def undo_write(history: History, write: Write, journals: Path | None = None) -> Write:
    """Put the files of a write back as they were before it, all or none; return the write that did.

    Raises Stale if a file is not as that write left it, NoSuchWrite if the old bytes are gone, and what `write_files`
    raises. The undo can be undone.
    """
    root = ConfinedFolder(Path(write.root))
    for file in write.files:
        if root.read_digest(file.path) != (file.after or ABSENT):
            raise Stale(
                f"{Path(write.root, file.path)} has changed since that write; nothing was undone",
                current_sha256=root.read_digest(file.path),
            )
    changes = [
        FileChange(file.path, None if file.before is None else history.read_bytes(file.before), file.after or ABSENT)
        for file in write.files
    ]
    journal = None if journals is None else Journal(journals, root.root)
    with keep_old(history, root, [(change.path, change.data) for change in changes], write.id) as undo_id:
        write_files(root, changes, journal)
    for file in write.files:
        if file.after is None and file.mode is not None:
            (root.root / file.path).chmod(file.mode)
    return history.find(undo_id) if undo_id else replace(write, undoes=write.id)
