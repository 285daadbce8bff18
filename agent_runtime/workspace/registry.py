"""Registered workspaces: names, owners, file lists, and snapshots by version."""

from __future__ import annotations

import re
import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cachetools import FIFOCache

from agent_runtime.errors import BadRequest, Conflict, NotIndexed, OutsideRoot, SnapshotGone, WorkspaceMissing
from agent_runtime.files import MAX_FILE_BYTES
from agent_runtime.request_context import LOCAL, Principal
from agent_runtime.workspace.history import History
from agent_runtime.workspace.index import WatchedIndex
from agent_runtime.workspace.sandbox import is_below
from agent_runtime.workspace.workspace import Workspace
from repo_cache.cache import RepoCache
from repo_cache.ignore import IgnoreRules
from repo_cache.scan import scan
from repo_cache.snapshot import Snapshot
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

MAX_LISTED = 10_000
"""Limit of the files on one page."""

PAGES_SECONDS = 10.0
"""For so long, later pages come from the walk that the first page made."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file's path (relative, POSIX) and size."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FilePage:
    """Some files, ordered by path; `next` is the path after which the next page begins, None for the last page."""

    files: tuple[ListedFile, ...]
    next: str | None


class FileListing:
    """Lists a workspace's files in pages; the first page walks the folder. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._sizes: Mapping[str, int] = {}
        self._walked_at = -PAGES_SECONDS

    def get_page(self, after: str = "", limit: int = MAX_LISTED) -> FilePage:
        """Return up to `limit` files after the path `after`.

        Binary files are included; ignored files, and those too large to be edited, are not.
        """
        with self._lock:
            if not after or time.monotonic() - self._walked_at > PAGES_SECONDS:
                self._walk()
            paths, sizes = self._paths, self._sizes
        first = bisect_right(paths, after) if after else 0
        found = paths[first : first + limit]
        more = first + limit < len(paths)
        return FilePage(tuple(ListedFile(path, sizes[path]) for path in found), found[-1] if more else None)

    def _walk(self) -> None:
        files = scan(self._root, IgnoreRules(self._root), max_file_bytes=MAX_FILE_BYTES).files
        self._paths, self._sizes = sorted(files), {path: stat.size for path, stat in files.items()}
        self._walked_at = time.monotonic()


MAX_SNAPSHOTS = 64
"""Limit of the versions of one workspace for which a client may ask what has changed since.

Snapshots share unchanged files: 64 of them take the memory of the changes between them.
"""

NOT_LOADED = "the model, whose tokenizer it takes, is not loaded yet"


class SnapshotHistory:
    """The newest snapshots that were sent to clients, by version. Thread-safe.

    A version is a random word and the snapshot's number, so that a version of an earlier run of the service, or of a
    workspace that was registered again, is never mistaken for a current one.
    """

    def __init__(self) -> None:
        self._word = secrets.token_hex(4)
        self._by_version: FIFOCache[str, Snapshot] = FIFOCache(MAX_SNAPSHOTS)
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot) -> str:
        """Keep a snapshot; returns its version."""
        version = f"{self._word}-{snapshot.version}"
        with self._lock:
            self._by_version[version] = snapshot
        return version

    def find(self, version: str) -> Snapshot:
        """Return the snapshot of a version; raises SnapshotGone."""
        with self._lock:
            found = self._by_version.get(version)
        if found is None:
            raise SnapshotGone(
                f"version {version!r} is not kept (any more): read the snapshot again, and ask for changes since that"
            )
        return found

    def find_tokens(self, path: str, digest: str) -> FileTokens | None:
        """Return the tokens of a file with this content hash in one of the snapshots, None if it is in none."""
        with self._lock:
            snapshots = list(self._by_version.values())
        found = (snapshot.get(path) for snapshot in reversed(snapshots))
        return next((tokens for tokens in found if tokens is not None and tokens.content_hash == digest), None)


@dataclass(slots=True, eq=False)
class WorkspaceEntry:
    """A registered workspace. `tenant` is None for the service's own folder, which every tenant sees.

    `index` is None until the model's tokenizer is loaded, and always if the service does not watch files;
    `unavailable_reason` then says why.
    """

    name: str
    workspace: Workspace
    tenant: str | None = None
    index: WatchedIndex | None = None
    unavailable_reason: str = NOT_LOADED
    snapshots: SnapshotHistory = field(default_factory=SnapshotHistory)
    listing: FileListing = field(init=False)

    def __post_init__(self) -> None:
        self.listing = FileListing(self.workspace.root)
        self.workspace.versions.add_source(self._find_version)

    def _find_version(self, path: str, digest: str) -> bytes | None:
        """Return the bytes of a file in a snapshot that was sent to a client, None without such a snapshot."""
        tokens = self.snapshots.find_tokens(path, digest)
        if tokens is None or self.index is None:
            return None
        return self.index.tokenizer.decode(tokens.token_ids.tolist()).encode()

    @property
    def root(self) -> str:
        """The resolved path of the folder."""
        return str(self.workspace.root)

    def wait_for_cache(self, timeout_s: float) -> RepoCache:
        """Return the index, which is built now if need be; raises NotIndexed if that takes longer than `timeout_s`."""
        watched = self.index
        if watched is None:
            raise NotIndexed(f"workspace {self.name!r} has no snapshot: {self.unavailable_reason}")
        if not watched.wait(timeout_s) or (cache := watched.cache) is None:
            why = watched.fault or "its files are being indexed; try again in some seconds"
            raise NotIndexed(f"workspace {self.name!r} has no snapshot: {why}")
        return cache

    def close(self) -> None:
        """Stop watching its files."""
        if self.index is not None:
            self.index.close()


DEFAULT = "default"
"""The workspace of `hunk serve --root`, used by requests that name none."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Valid workspace names; they appear in URLs and logs."""

MAX_WORKSPACES = 64
"""Limit for each tenant: a workspace in use is watched and keeps its tokens in memory."""

NOT_WATCHED = "the service was started with --no-watch"


class WorkspaceRegistry:
    """Registered folders. A tenant sees its own and the folder that the service was started with. Thread-safe.

    Each tenant has its own names: two tenants may use the same name, and do not see each other's. Registrations end
    with the service, since its operator decides at each start which folders it may touch.

    It is also the merger's `TokenIndex`, which finds tokens only in the workspace of the request.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        allowed: Sequence[Path] = (),
        watch: bool = True,
        store: Path | None = None,
        journals: Path | None = None,
        history: History | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        """`allowed` are further folders, besides `root`, below which workspaces may be registered.

        `journals` holds the journals of writes (`Workspace`); `store` and `report` are those of `WatchedIndex`. Raises
        BadRequest if a path is not a folder.
        """
        self._allowed = tuple(Workspace(folder).root for folder in ([root] if root is not None else []) + [*allowed])
        self._watch, self._store, self._report = watch, store, report
        self._journals = journals
        self._history = history
        self._tokenizer: BPETokenizer | None = None
        self._lock = threading.Lock()
        self._on_remove: list[Callable[[WorkspaceEntry], None]] = []
        self._by_key: dict[tuple[str | None, str], WorkspaceEntry] = {}
        if root is not None:
            self._add(WorkspaceEntry(DEFAULT, Workspace(root, journals, search=True, history=history)))

    def get(self, name: str | None = None, principal: Principal = LOCAL) -> Workspace:
        """Return a workspace, the default without a name; raises WorkspaceMissing, or OutsideRoot without a default."""
        return self.get_entry(name, principal).workspace

    def find(self, name: str | None, principal: Principal = LOCAL) -> Workspace | None:
        """Return a workspace, None if no name is given and there is no default; raises WorkspaceMissing."""
        return None if name is None and not self.has_default else self.get(name, principal)

    @property
    def has_default(self) -> bool:
        """Whether the service was started with a folder."""
        return (None, DEFAULT) in self._by_key

    def get_entry(self, name: str | None = None, principal: Principal = LOCAL) -> WorkspaceEntry:
        """Return a workspace's entry; raises as `get` does."""
        if name is None and not self.has_default:
            raise OutsideRoot("this service reads no files: send 'original', or start it with --root DIR")
        tenant = None if name in (None, DEFAULT) else principal.tenant
        found = self._by_key.get((tenant, name or DEFAULT))
        if found is None:
            raise WorkspaceMissing(f"there is no workspace {name!r}; GET /workspaces lists them")
        return found

    def list_visible(self, principal: Principal) -> list[WorkspaceEntry]:
        """Return the default and the tenant's own workspaces, by name."""
        with self._lock:
            seen = [entry for entry in self._by_key.values() if entry.tenant in (None, principal.tenant)]
        return sorted(seen, key=lambda entry: (entry.tenant is not None, entry.name))

    def register(self, root: str, name: str | None = None, principal: Principal = LOCAL) -> tuple[WorkspaceEntry, bool]:
        """Register a folder for the principal's tenant; returns the entry, and whether it is new.

        `root` is absolute; the default name is that of the folder. Registering it again changes nothing. Raises
        Forbidden without the scope `admin`; BadRequest for a root that is no folder, or a bad name; OutsideRoot if the
        operator does not allow the folder, or another tenant has it, or one above or below; Conflict if the name is
        taken or the tenant has too many.
        """
        principal.check("admin")
        workspace = self._open_allowed(root)
        given, name = name, _make_name(workspace.root) if name is None else name
        if not NAME.fullmatch(name):
            raise BadRequest(
                f"the name {name!r} is not one of 1 to 64 letters, digits, '.', '_' and '-', the first a letter or a "
                "digit" + ("" if given is not None else "; give one as 'name'"),
                field="name",
            )
        with self._lock:
            known = self._by_key.get((principal.tenant, name))
            if known is not None and known.workspace.root == workspace.root:
                return known, False
            if known is not None or name == DEFAULT:
                raise Conflict(f"the name {name!r} stands for another folder already; choose another, or remove it")
            foreign = [entry for entry in self._by_key.values() if entry.tenant not in (None, principal.tenant)]
            if any(_is_nested(entry.workspace.root, workspace.root) for entry in foreign):
                raise OutsideRoot(f"{root} is not to be had: it belongs to somebody else, or holds what does")
            if sum(entry.tenant == principal.tenant for entry in self._by_key.values()) >= MAX_WORKSPACES:
                raise Conflict(f"there are {MAX_WORKSPACES} workspaces already, which is the most; remove one first")
            return self._add(WorkspaceEntry(name, workspace, principal.tenant)), True

    def remove(self, name: str, principal: Principal = LOCAL) -> None:
        """Unregister a workspace; its files stay. Raises Forbidden, WorkspaceMissing, or Conflict for the default."""
        principal.check("admin")
        if name == DEFAULT and self.has_default:
            raise Conflict("the default workspace stays for as long as the service runs; start it without --root")
        with self._lock:
            found = self._by_key.pop((principal.tenant, name), None)
        if found is None:
            raise WorkspaceMissing(f"there is no workspace {name!r}; GET /workspaces lists them")
        for listener in self._on_remove:
            listener(found)
        found.close()

    def add_remove_listener(self, listener: Callable[[WorkspaceEntry], None]) -> None:
        """Call `listener` for each workspace that is removed."""
        self._on_remove.append(listener)

    def set_tokenizer(self, tokenizer: BPETokenizer) -> None:
        """Set the tokenizer of the loaded model, with which workspaces are indexed."""
        with self._lock:
            self._tokenizer = tokenizer
            for entry in self._by_key.values():
                self._open_index(entry)

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        """Return the tokens of the file at `path` below `root` (default: the default workspace); never waits.

        None unless they are of this text. Needs no tenant, since the caller has the text already.
        """
        with self._lock:
            found = next((entry for entry in self._by_key.values() if entry.root == root or not root), None)
            watched = found.index if found is not None and (root or found.name == DEFAULT) else None
        return watched.find_tokens(path, text) if watched is not None else None

    def close(self) -> None:
        """Stop watching all workspaces."""
        with self._lock:
            entries = list(self._by_key.values())
        for entry in entries:
            entry.close()

    def _add(self, entry: WorkspaceEntry) -> WorkspaceEntry:
        self._by_key[entry.tenant, entry.name] = entry
        self._open_index(entry)
        return entry

    def _open_index(self, entry: WorkspaceEntry) -> None:
        if not self._watch:
            entry.unavailable_reason = NOT_WATCHED
        elif self._tokenizer is not None and entry.index is None:
            entry.index = WatchedIndex(entry.workspace.root, self._tokenizer, self._store, self._report)

    def _open_allowed(self, root: str) -> Workspace:
        """Open a root that the operator allows; symbolic links are followed before the check."""
        folder = Path(root)
        if "\0" in root or not folder.is_absolute():
            raise BadRequest(f"the root {root!r} is not an absolute path", field="root")
        try:
            resolved = folder.resolve()
        except (OSError, RuntimeError) as error:  # a symlink loop
            raise BadRequest(f"the root {root} cannot be read: {error}", field="root") from error
        if not any(is_below(resolved, allowed) for allowed in self._allowed):
            raise OutsideRoot(
                f"{root} is not below a folder that this service may use; whoever starts it adds one with --allow-root"
            )
        return Workspace(resolved, self._journals, search=True, history=self._history)


def _is_nested(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _make_name(root: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-._")[:64]
