"""The folders that the service may read and write, by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agent_runtime.errors import OutsideRoot, WorkspaceMissing
from agent_runtime.principal import LOCAL, Principal
from agent_runtime.workspace import Workspace

DEFAULT = "default"
"""The workspace of `hunk serve --root`, which a request means where it names none."""


class Workspaces:
    """Registered folders; a tenant sees its own, and the one that the service was started with."""

    def __init__(self, root: Path | None = None) -> None:
        self._by_name = {DEFAULT: Workspace(root)} if root is not None else {}

    def get(self, name: str | None = None, principal: Principal = LOCAL) -> Workspace:
        """One by name, the default where none is given; raises WorkspaceMissing, or OutsideRoot without a default."""
        if name is None and DEFAULT not in self._by_name:
            raise OutsideRoot("this service reads no files: send 'original', or start it with --root DIR")
        found = self._by_name.get(name or DEFAULT)
        if found is None:
            raise WorkspaceMissing(f"there is no workspace {name!r}; GET /workspaces lists them")
        return found

    def find(self, name: str | None, principal: Principal = LOCAL) -> Workspace | None:
        """As `get`, but None where none is named and there is no default."""
        return None if name is None and DEFAULT not in self._by_name else self.get(name, principal)

    def __iter__(self) -> Iterator[tuple[str, Workspace]]:
        return iter(self._by_name.items())
