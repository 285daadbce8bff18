"""One registered workspace: its folder, whose it is, its files as tokens, and the snapshots that were given out."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from agent_runtime.errors import NotIndexed, SnapshotGone
from agent_runtime.workspaces.listing import Listing
from agent_runtime.workspaces.watched import WatchedFiles
from agent_runtime.workspaces.workspace import Workspace
from repo_cache.cache import RepoCache
from repo_cache.snapshot import Snapshot

MAX_SNAPSHOTS = 64
"""Versions of one workspace that a client may still ask for the changes since; the newest that were given out.

Snapshots share what they have in common: 64 of them cost what changed in between.
"""


NOT_LOADED = "the model, whose tokenizer it takes, is not loaded yet"


class GivenSnapshots:
    """Snapshots by the version under which clients know them, the newest; thread-safe.

    A version is a word of this indexing and the number of the snapshot, so that one of an earlier run of the service,
    or of a workspace that was registered anew, is never taken for another.
    """

    def __init__(self) -> None:
        self._word = secrets.token_hex(4)
        self._by_version: OrderedDict[str, Snapshot] = OrderedDict()
        self._lock = threading.Lock()

    def give(self, snapshot: Snapshot) -> str:
        """The snapshot's version, from which changes may be asked for now."""
        version = f"{self._word}-{snapshot.version}"
        with self._lock:
            self._by_version[version] = snapshot
            self._by_version.move_to_end(version)
            if len(self._by_version) > MAX_SNAPSHOTS:
                self._by_version.popitem(last=False)
        return version

    def given(self, version: str) -> Snapshot:
        """The snapshot of a version; raises SnapshotGone."""
        with self._lock:
            found = self._by_version.get(version)
        if found is None:
            raise SnapshotGone(
                f"version {version!r} is not kept (any more): read the snapshot again, and ask for changes since that"
            )
        return found


@dataclass(slots=True, eq=False)
class Registered:
    """A workspace by name. `tenant` is None for what everybody sees: the folder that the service was started with.

    `watched` is None until the model, and with it its tokenizer, is loaded, and for good where nothing is watched;
    `why_not` then says why.
    """

    name: str
    workspace: Workspace
    tenant: str | None = None
    watched: WatchedFiles | None = None
    why_not: str = NOT_LOADED
    given: GivenSnapshots = field(default_factory=GivenSnapshots)
    listing: Listing = field(init=False)

    def __post_init__(self) -> None:
        self.listing = Listing(self.workspace.root)

    @property
    def root(self) -> str:
        """The folder, resolved."""
        return str(self.workspace.root)

    def indexed(self, timeout_s: float) -> RepoCache:
        """The files as tokens, which are indexed now if they were not; raises NotIndexed where that takes longer."""
        watched = self.watched
        if watched is None:
            raise NotIndexed(f"workspace {self.name!r} has no snapshot: {self.why_not}")
        if not watched.wait(timeout_s) or (cache := watched.cache) is None:
            why = watched.fault or "its files are being indexed; try again in some seconds"
            raise NotIndexed(f"workspace {self.name!r} has no snapshot: {why}")
        return cache

    def close(self) -> None:
        """Look at its files no more."""
        if self.watched is not None:
            self.watched.close()
