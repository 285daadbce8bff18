"""Undoes a write that the history has kept."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from agent_runtime.errors import EditRefused, NoSuchWrite, Stale, Unsupported
from agent_runtime.workspace.history import History, Write, WrittenFile, keep_old
from agent_runtime.workspace.journal import Journal
from agent_runtime.workspace.sandbox import ABSENT, ConfinedFolder
from agent_runtime.workspace.workspace import FileChange, Workspace, write_files
from repo_cache.files import READ_FLAGS


def undo_in_workspace(workspace: Workspace, write_id: str | None = None) -> Write:
    """Undo a write of files of the workspace, by default the last one; the paths of the answer are below its root.

    Raises NoSuchWrite, also for a write of other files, Unsupported without a history, and what `undo_write` raises.
    """
    history = workspace.history
    if history is None:
        raise Unsupported("nothing is kept that could be undone; start it without `--history 0`", field="id")
    try:
        write = history.find_last(workspace.root) if write_id is None else history.find(write_id)
        write = _rebase(write, workspace.root)
    except (NoSuchWrite, ValueError):
        what = "no write" if write_id is None else f"no write {write_id!r}"
        raise NoSuchWrite(f"there is {what} of this workspace that can be undone") from None
    return undo_write(history, write, workspace.journals)


def _rebase(write: Write, root: Path) -> Write:
    """Return a write with paths relative to `root`; raises ValueError if one is not below it."""
    files = tuple(replace(file, path=Path(write.root, file.path).relative_to(root).as_posix()) for file in write.files)
    return replace(write, root=str(root), files=files)


def undo_write(history: History, write: Write, journals: Path | None = None) -> Write:
    """Put the files of a write back as they were before it, all or none; return the write that did.

    Raises Stale if a file is not as that write left it, NoSuchWrite if the old bytes are gone, and what `write_files`
    raises. The undo can be undone.
    """
    root = ConfinedFolder(Path(write.root))
    for file in write.files:
        current = root.read_digest(root.resolve(file.path, follow_last=file.after is not None))
        if current != (file.after or ABSENT):
            raise Stale(f"{file.path} has changed since that write; nothing was undone", current_sha256=current)
    changes = [
        FileChange(file.path, None if file.before is None else history.read_bytes(file.before), file.after or ABSENT)
        for file in write.files
    ]
    journal = None if journals is None else Journal(journals, root.root)
    with keep_old(history, root, [(change.path, change.data) for change in changes], write.id) as undo_id:
        write_files(root, changes, journal)
    for file in write.files:
        if file.after is None and file.mode is not None:
            _set_mode(root, file.path, file.mode)
    return replace(write, id=undo_id or "", undoes=write.id, files=tuple(_reverse(file) for file in write.files))


def run_or_undo(
    command: str | Sequence[str], write_id: str, history: History | None, journals: Path, output: int | None = None
) -> None:
    """Run a command (of the shell, or a program and its arguments) after a write; undo that if it does not end with 0.

    output: file descriptor for what it prints, None: that of this process. Raises EditRefused if it fails, OSError if
    it cannot be started, Stale if it has changed a file of the write itself. An interruption undoes the write, too.
    """
    shown = command if isinstance(command, str) else " ".join(command)
    outcome = "was interrupted"
    try:
        code = subprocess.run(command, shell=isinstance(command, str), stdout=output, check=False).returncode
        outcome = "" if code == 0 else f"ended with {code}"
    except OSError:
        outcome = "cannot be started"
        raise
    finally:
        if outcome and write_id and history is not None:
            undo_write(history, history.find(write_id), journals)
    if outcome and not write_id:
        raise EditRefused(f"{shown!r} {outcome}, and the write stays: its old bytes could not be kept")
    if outcome:
        raise EditRefused(f"the write is undone: {shown!r} {outcome}")


def _set_mode(root: ConfinedFolder, path: str, mode: int) -> None:
    """Set the mode bits of a file that was just made again; never those of what a link leads to."""
    with suppress(OSError), root.open_parent(path) as (folder, name):
        descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def _reverse(file: WrittenFile) -> WrittenFile:
    return replace(file, before=file.after, after=file.before)
