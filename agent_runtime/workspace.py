"""The folder that a service may read, and nothing outside it."""

from __future__ import annotations

from pathlib import Path

from agent_runtime.errors import BadRequest, OutsideRoot
from agent_runtime.limits import read_file


class Workspace:
    """One folder; a path is taken relative to it and, with all symbolic links followed, has to end inside it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        if not self.root.is_dir():
            raise BadRequest(f"the root {root} is not a folder", field="root")

    def read(self, path: str) -> bytes:
        """A file's bytes; raises OutsideRoot, or what `read_file` raises."""
        return read_file(self._locate(path))

    def _locate(self, path: str) -> Path:
        if "\0" in path or not path:
            raise BadRequest("path is empty or holds a NUL", field="path")
        if Path(path).is_absolute():
            raise OutsideRoot(f"path {path} is absolute; give it relative to the service's root")
        located = (self.root / path).resolve()
        if not located.is_relative_to(self.root):
            raise OutsideRoot(f"path {path} leads out of the service's root")
        return located
