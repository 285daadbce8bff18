"""The folder that files are read from and written to, and nothing outside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_runtime.errors import BadFile, BadRequest, FileMissing, OutsideRoot
from agent_runtime.limits import read_file
from agent_runtime.types import FileResult
from agent_runtime.writer import Change, write_all


class Workspace:
    """One folder; a path is taken relative to it and, with all symbolic links followed, has to end inside it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadRequest(f"the root {root} is not a folder", field="root")

    def read(self, path: str) -> bytes:
        """A file's bytes; raises OutsideRoot, or what `read_file` raises."""
        return read_file(self._locate(path))

    def read_if_there(self, path: str) -> bytes | None:
        """A file's bytes, None where there is none; raises as `read` does."""
        try:
            return self.read(path)
        except FileMissing:
            return None

    def write(self, files: Sequence[FileResult]) -> None:
        """Put merged files in their places, all or none; raises Stale, BadFile or OutsideRoot.

        All paths are those before the edit: where two files change places, each is moved to where the other stood.
        """
        before = {file.path: file.sha256_before for file in files if file.sha256_before}
        wanted: dict[str, Change] = {}
        for file in files:
            if file.action in ("delete", "move"):
                wanted.setdefault(file.path, Change(self._place(file.path), None, file.sha256_before))
        for file in files:
            if file.action != "delete":
                path = file.move_to or file.path
                mode_of = self._place(file.path) if file.move_to else None
                wanted[path] = Change(self._place(path), file.data, before.get(path, ""), mode_of)
        write_all(list(wanted.values()))

    def _place(self, path: str) -> Path:
        """The path itself, its folder resolved; a link in the last place stays one."""
        self._locate(path)
        place = self.root / path
        return place.parent.resolve() / place.name

    def _locate(self, path: str) -> Path:
        if "\0" in path or not path:
            raise BadRequest("path is empty or holds a NUL", field="path")
        if Path(path).is_absolute():
            raise OutsideRoot(f"path {path} is absolute; give it relative to the root")
        try:
            located = (self.root / path).resolve()
        except (OSError, RuntimeError) as error:  # links that lead in a circle
            raise BadFile(f"cannot read {path}: {error}") from error
        if not located.is_relative_to(self.root):
            raise OutsideRoot(f"path {path} leads out of the root")
        return located
