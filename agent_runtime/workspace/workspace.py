"""Reads and writes files below one root."""

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
    """One folder; a path is taken relative to it and, with all symbolic links followed, has to end inside it.

    Git's own folder (`.git`) counts as outside: what is written there, git runs.
    """

    def __init__(self, root: Path, journals: Path | None = None, *, search: bool = False) -> None:
        """`journals` is a folder that keeps the journals of all roots.

        What a write that was killed has left is seen to now: what these journals know of, and with `search` also what
        is found beside the files. Raises BadRequest where the root is no folder.
        """
        self._files = ConfinedFolder(root)
        self.root = self._files.root
        self._journal = None if journals is None else Journal(journals, self.root)
        if journals is not None:
            self._recover_journals(journals)
        if search:
            recover_below(self._files)

    def read(self, path: str) -> bytes:
        """A file's bytes; raises OutsideRoot, FileMissing, TooLarge or BadFile."""
        return self._files.read(path)

    def read_if_there(self, path: str) -> bytes | None:
        """A file's bytes, None where there is none; raises as `read` does."""
        try:
            return self.read(path)
        except FileMissing:
            return None

    def write(self, files: Sequence[FileResult]) -> None:
        """Put merged files in their places, all or none; raises Stale, BadFile or OutsideRoot.

        All paths are those before the edit: where two files change places, each is moved to where the other stood.
        A file that is done already is left alone, one that has been moved among them.
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
        """See to all writes in these journals that were broken off below this root, or below one around it."""
        for journal in find_journals(journals, self.root):
            try:
                with journal.lock():
                    recover(ConfinedFolder(journal.root), journal)
            except (OSError, HunkError) as error:
                LOG.error("the journal of %s cannot be read: %s", journal.root, error)


def write_if_merged(workspace: Workspace, result: ApplyResult, cancel: CancelToken) -> ApplyResult:
    """Write the merged files, all or none, and say so; nothing where a check rejected them or nothing is to be done.

    Raises Stale, BadFile or OutsideRoot as `Workspace.write` does, and the token's error if the request is cancelled:
    then nothing is written.
    """
    if result.status != "merged":
        return result
    cancel.raise_if_cancelled()
    workspace.write(result.files)
    return replace(result, written=True)
