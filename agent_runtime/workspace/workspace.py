"""Reads and writes the files below one root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent_runtime.errors import FileMissing, HunkError
from agent_runtime.request_context import CancelToken
from agent_runtime.types import ApplyResult, FileResult
from agent_runtime.workspace.journal import LOG, Journal, find_journals
from agent_runtime.workspace.recovery import recover, recover_below
from agent_runtime.workspace.sandbox import ConfinedFolder
from agent_runtime.workspace.writer import FileChange, write_files


class Workspace:
    """A root folder. Paths are relative to it and, with all symbolic links followed, must end inside it.

    `.git` counts as outside: git runs programs from there.
    """

    def __init__(self, root: Path, journals: Path | None = None, *, search: bool = False) -> None:
        """Open the folder, and recover interrupted writes: those in `journals`, which holds the journals of all roots.

        With `search`, record copies next to the files are recovered, too. Raises BadRequest if the root is no folder.
        """
        self._files = ConfinedFolder(root)
        self.root = self._files.root
        self._journal = None if journals is None else Journal(journals, self.root)
        if journals is not None:
            self._recover_journals(journals)
        if search:
            recover_below(self._files)

    def read(self, path: str) -> bytes:
        """Read a file; raises OutsideRoot, FileMissing, TooLarge or BadFile."""
        return self._files.read(path)

    def read_if_there(self, path: str) -> bytes | None:
        """Read a file, None if there is none; raises OutsideRoot, TooLarge or BadFile."""
        try:
            return self.read(path)
        except FileMissing:
            return None

    def write(self, files: Sequence[FileResult]) -> None:
        """Write merged files, all or none; raises Stale, BadFile or OutsideRoot.

        All paths are those before the edit: two files may swap places. Files that are written already are skipped, also
        if they were moved.
        """
        files = [file for file in files if file.status != "noop"]
        before = {file.path: file.sha256_before for file in files if file.sha256_before}
        wanted: dict[str, FileChange] = {}
        for file in files:
            if file.action in ("delete", "move"):
                wanted.setdefault(file.path, FileChange(file.path, None, file.sha256_before))
        for file in files:
            if file.action != "delete":
                path = file.move_to or file.path
                mode_of = file.path if file.move_to else None
                wanted[path] = FileChange(path, file.data, before.get(path, ""), mode_of)
        write_files(self._files, list(wanted.values()), self._journal)

    def _recover_journals(self, journals: Path) -> None:
        """Recover the interrupted writes in these journals below this root, or below one around it."""
        for journal in find_journals(journals, self.root):
            try:
                with journal.lock():
                    recover(ConfinedFolder(journal.root), journal)
            except (OSError, HunkError) as error:
                LOG.error("the journal of %s cannot be read: %s", journal.root, error)


def write_if_merged(workspace: Workspace, result: ApplyResult, cancel: CancelToken) -> ApplyResult:
    """Write the files of a merged result, all or none; other results are returned unchanged.

    Raises Stale, BadFile or OutsideRoot as `Workspace.write` does, and the token's error if the request is cancelled:
    then nothing is written.
    """
    if result.status != "merged":
        return result
    cancel.raise_if_cancelled()
    workspace.write(result.files)
    return replace(result, written=True)
