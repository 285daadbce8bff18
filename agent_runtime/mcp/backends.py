"""A folder of this machine as the place of an agent's files; edits are merged here or by a service."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from agent_runtime.apply.applier import Applier
from agent_runtime.apply.aside import Aside
from agent_runtime.apply.merger import Merger
from agent_runtime.apply.outcome import decode
from agent_runtime.client import Client
from agent_runtime.errors import Stale
from agent_runtime.files.limits import MAX_EDIT_BYTES, check_size
from agent_runtime.generation.watcher import Watcher
from agent_runtime.mcp.following import followed
from agent_runtime.mcp.places import Edit, FileText, PlaceStatus, options_of
from agent_runtime.types import ApplyRequest, ApplyResult, Options
from agent_runtime.workspaces.workspace import Workspace

Apply = Callable[[ApplyRequest, Watcher], ApplyResult]


@dataclass(frozen=True, slots=True)
class Merging:
    """Who merges: `apply` does, `status` says what there is to say about it, `close` ends it."""

    apply: Apply
    status: Callable[[], PlaceStatus]
    close: Callable[[], None]


class FolderPlace:
    """Files below `root`; a path is relative to it, or absolute and below it."""

    def __init__(
        self, root: Path, merging: Merging, *, options: Options | None = None, journals: Path | None = None
    ) -> None:
        """`options` are those of every edit, but for what the edit says itself; `journals` as in `Workspace`."""
        self._given = root.absolute()
        self._workspace = Workspace(root, journals)
        self._merging = merging
        self._options = options or Options()

    def read(self, path: str) -> FileText:
        """One file; raises BadFile."""
        path = self._relative(path)
        data = self._workspace.read(path)
        encoding = decode(data, path).encoding
        return FileText(path, data.decode(encoding), encoding, sha256(data).hexdigest())

    def edit(self, edit: Edit, watcher: Watcher) -> ApplyResult:
        """Merge an edit and write it, unless the file is not what the agent believes or has changed meanwhile."""
        path = self._relative(edit.path)
        check_size(len(edit.edit), "the edit", MAX_EDIT_BYTES)
        data = self._workspace.read(path)
        current = sha256(data).hexdigest()
        if edit.expected_sha256 not in (None, current):
            raise Stale(f"{path} is not what the edit was made for; read it again", current_sha256=current)
        request = ApplyRequest(data, edit.edit, path, **options_of(edit, self._options))
        result = self._merging.apply(request, watcher)
        if edit.write and result.status == "merged":
            self._workspace.write(result.files)
        return result

    def status(self) -> PlaceStatus:
        """The folder, and who merges."""
        return replace(self._merging.status(), root=str(self._workspace.root))

    def close(self) -> None:
        """End what is under way."""
        self._merging.close()

    def _relative(self, path: str) -> str:
        """Agents like absolute paths; one that leads elsewhere stays as it is, and is refused when it is read."""
        given = Path(path)
        for root in (self._workspace.root, self._given):
            if given.is_absolute() and given.is_relative_to(root):
                return given.relative_to(root).as_posix()
        return path


class LazyModel:
    """A model that is loaded when the first edit needs it: most need none."""

    def __init__(self, name: str, load: Callable[[], Merger]) -> None:
        self.name = name
        self._load = load
        self._lock = threading.Lock()
        self._merger: Merger | None = None

    def get(self) -> Merger:
        """The model; loads it once, whoever else waits for it too. Raises ModelUnavailable."""
        with self._lock:
            if self._merger is None:
                self._merger = self._load()
            return self._merger

    def status(self) -> PlaceStatus:
        """Its name, and whether it is loaded."""
        return PlaceStatus(model=self.name, model_state="loaded when needed" if self._merger is None else "loaded")

    def close(self) -> None:
        """Take no more edits."""
        if self._merger is not None:
            self._merger.close()


def merging_here(model: LazyModel, aside: Aside | None = None) -> Merging:
    """Rules, on large texts `aside` where that is given, and where they do not decide, a model of this process."""

    def close() -> None:
        model.close()
        if aside is not None:
            aside.close()

    return Merging(Applier(model.get, aside).apply, model.status, close)


def merging_there(client: Client, url: str) -> Merging:
    """A service, to which the file's text travels."""

    def status() -> PlaceStatus:
        return PlaceStatus(model_state="loaded" if client.is_ready() else "not loaded yet", url=url)

    return Merging(lambda request, watcher: followed(client.stream(request), watcher), status, client.close)
