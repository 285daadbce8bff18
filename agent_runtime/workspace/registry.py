"""Registered workspaces: names, owners, file lists, and the snapshots that were given out."""

from __future__ import annotations

import re
import secrets
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_runtime.access import LOCAL, Principal
from agent_runtime.errors import BadRequest, Conflict, NotIndexed, OutsideRoot, SnapshotGone, WorkspaceMissing
from agent_runtime.limits import MAX_FILE_BYTES
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
"""Of one page."""

PAGES_SECONDS = 10.0
"""For which the pages behind the first are of the walk that the first one made."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file by its path (relative, POSIX)."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FilePage:
    """Some files in the order of their paths; `next` is what to ask for behind these, None where they are the last."""

    files: tuple[ListedFile, ...]
    next: str | None


class FileListing:
    """One workspace's files; the first page takes a walk over it, one walk at a time. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._sizes: Mapping[str, int] = {}
        self._walked_at = -PAGES_SECONDS

    def get_page(self, after: str = "", limit: int = MAX_LISTED) -> FilePage:
        """Up to `limit` files behind the path `after`. Needs no tokens: binary files are among them, ignored ones are
        not, and neither are those that are too large to be edited.
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
"""Versions of one workspace that a client may still ask for the changes since; the newest that were given out.

Snapshots share what they have in common: 64 of them cost what changed in between.
"""


NOT_LOADED = "the model, whose tokenizer it takes, is not loaded yet"


class SnapshotHistory:
    """Snapshots by the version under which clients know them, the newest; thread-safe.

    A version is a word of this indexing and the number of the snapshot, so that one of an earlier run of the service,
    or of a workspace that was registered anew, is never taken for another.
    """

    def __init__(self) -> None:
        self._word = secrets.token_hex(4)
        self._by_version: OrderedDict[str, Snapshot] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, snapshot: Snapshot) -> str:
        """The snapshot's version, from which changes may be asked for now."""
        version = f"{self._word}-{snapshot.version}"
        with self._lock:
            self._by_version[version] = snapshot
            self._by_version.move_to_end(version)
            if len(self._by_version) > MAX_SNAPSHOTS:
                self._by_version.popitem(last=False)
        return version

    def find(self, version: str) -> Snapshot:
        """The snapshot of a version; raises SnapshotGone."""
        with self._lock:
            found = self._by_version.get(version)
        if found is None:
            raise SnapshotGone(
                f"version {version!r} is not kept (any more): read the snapshot again, and ask for changes since that"
            )
        return found


@dataclass(slots=True, eq=False)
class WorkspaceEntry:
    """A workspace by name. `tenant` is None for what everybody sees: the folder that the service was started with.

    `watched` is None until the model, and with it its tokenizer, is loaded, and for good where nothing is watched;
    `why_not` then says why.
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

    @property
    def root(self) -> str:
        """The folder, resolved."""
        return str(self.workspace.root)

    def wait_for_cache(self, timeout_s: float) -> RepoCache:
        """The files as tokens, which are indexed now if they were not; raises NotIndexed where that takes longer."""
        watched = self.index
        if watched is None:
            raise NotIndexed(f"workspace {self.name!r} has no snapshot: {self.unavailable_reason}")
        if not watched.wait(timeout_s) or (cache := watched.cache) is None:
            why = watched.fault or "its files are being indexed; try again in some seconds"
            raise NotIndexed(f"workspace {self.name!r} has no snapshot: {why}")
        return cache

    def close(self) -> None:
        """Look at its files no more."""
        if self.index is not None:
            self.index.close()


DEFAULT = "default"
"""The workspace of `hunk serve --root`, which a request means where it names none."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a workspace may be called: it stands in URLs and in logs."""

MAX_WORKSPACES = 64
"""Of one tenant: each that is asked about is kept in memory, tokenised, and watched."""

NOT_WATCHED = "the service was started with --no-watch"


class WorkspaceRegistry:
    """Registered folders; a tenant sees its own, and the one that the service was started with. Thread-safe.

    Names are a tenant's own: two tenants may use one name, and none learns of the other's. What is registered is
    forgotten when the service ends: which folders it may touch is said by whoever starts it, and by nobody before.

    It is also the `TokenIndex` of the merger: the tokens of the workspace that a request is about, and of no other.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        allowed: Sequence[Path] = (),
        watch: bool = True,
        store: Path | None = None,
        journals: Path | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """`allowed` are folders below which others may be registered, beside `root`; see `WatchedIndex` for the rest.

        `journals` keeps what a write that is killed leaves to be finished or undone (`Workspace`).

        Raises BadRequest where one of them is no folder.
        """
        self._allowed = tuple(Workspace(folder).root for folder in ([root] if root is not None else []) + [*allowed])
        self._watch, self._store, self._say = watch, store, say
        self._journals = journals
        self._tokenizer: BPETokenizer | None = None
        self._lock = threading.Lock()
        self._on_remove: list[Callable[[WorkspaceEntry], None]] = []
        self._by_key: dict[tuple[str | None, str], WorkspaceEntry] = {}
        if root is not None:
            self._add(WorkspaceEntry(DEFAULT, Workspace(root, journals, search=True)))

    def get(self, name: str | None = None, principal: Principal = LOCAL) -> Workspace:
        """One by name, the default where none is given; raises WorkspaceMissing, or OutsideRoot without a default."""
        return self.get_entry(name, principal).workspace

    def find(self, name: str | None, principal: Principal = LOCAL) -> Workspace | None:
        """As `get`, but None where none is named and there is no default."""
        return None if name is None and not self.has_default else self.get(name, principal)

    @property
    def has_default(self) -> bool:
        """Whether the service was started with a folder."""
        return (None, DEFAULT) in self._by_key

    def get_entry(self, name: str | None = None, principal: Principal = LOCAL) -> WorkspaceEntry:
        """As `get`, with all that is known of it."""
        if name is None and not self.has_default:
            raise OutsideRoot("this service reads no files: send 'original', or start it with --root DIR")
        tenant = None if name in (None, DEFAULT) else principal.tenant
        found = self._by_key.get((tenant, name or DEFAULT))
        if found is None:
            raise WorkspaceMissing(f"there is no workspace {name!r}; GET /workspaces lists them")
        return found

    def list_visible(self, principal: Principal) -> list[WorkspaceEntry]:
        """The default, and the tenant's own by name."""
        with self._lock:
            seen = [entry for entry in self._by_key.values() if entry.tenant in (None, principal.tenant)]
        return sorted(seen, key=lambda entry: (entry.tenant is not None, entry.name))

    def register(self, root: str, name: str | None = None, principal: Principal = LOCAL) -> tuple[WorkspaceEntry, bool]:
        """Make a folder a workspace of the principal's tenant; returns it, and whether it is new.

        `root` is absolute; without a name, it is called as its folder is. Again the same does nothing. Raises Forbidden
        without the scope `admin`; BadRequest for a root that is no folder and for a bad name; OutsideRoot where the
        operator does not allow the folder, or another tenant has it, one above or one below; Conflict where the
        name is taken or the tenant has too many.
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
            if any(_is_nested(entry.workspace.root, workspace.root) for entry in self._list_foreign(principal)):
                raise OutsideRoot(f"{root} is not to be had: it belongs to somebody else, or holds what does")
            if sum(entry.tenant == principal.tenant for entry in self._by_key.values()) >= MAX_WORKSPACES:
                raise Conflict(f"there are {MAX_WORKSPACES} workspaces already, which is the most; remove one first")
            return self._add(WorkspaceEntry(name, workspace, principal.tenant)), True

    def remove(self, name: str, principal: Principal = LOCAL) -> None:
        """Forget a workspace; its files stay. Raises Forbidden, WorkspaceMissing, or Conflict for the default."""
        principal.check("admin")
        if name == DEFAULT and self.has_default:
            raise Conflict("the default workspace stays for as long as the service runs; start it without --root")
        with self._lock:
            found = self._by_key.pop((principal.tenant, name), None)
        if found is None:
            raise WorkspaceMissing(f"there is no workspace {name!r}; GET /workspaces lists them")
        for told in self._on_remove:
            told(found)
        found.close()

    def add_remove_listener(self, told: Callable[[WorkspaceEntry], None]) -> None:
        """Have somebody told of each workspace that is removed from here on."""
        self._on_remove.append(told)

    def set_tokenizer(self, tokenizer: BPETokenizer) -> None:
        """The model is loaded: from here on files can be had as tokens."""
        with self._lock:
            self._tokenizer = tokenizer
            for entry in self._by_key.values():
                self._open_index(entry)

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        """Those of the file at `path` below `root` (else of the default), if they are of just this text; never waits.

        Files of one content are the same for whoever has that content at hand, so no tenant is asked for.
        """
        with self._lock:
            found = next((entry for entry in self._by_key.values() if entry.root == root or not root), None)
            watched = found.index if found is not None and (root or found.name == DEFAULT) else None
        return watched.find_tokens(path, text) if watched is not None else None

    def close(self) -> None:
        """Look at no more files."""
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
            entry.index = WatchedIndex(entry.workspace.root, self._tokenizer, self._store, self._say)

    def _open_allowed(self, root: str) -> Workspace:
        """Where links lead out of what is allowed, it is what they lead to that counts."""
        folder = Path(root)
        if "\0" in root or not folder.is_absolute():
            raise BadRequest(f"the root {root!r} is not an absolute path", field="root")
        try:
            resolved = folder.resolve()
        except (OSError, RuntimeError) as error:  # links that lead in a circle
            raise BadRequest(f"the root {root} cannot be read: {error}", field="root") from error
        if not any(is_below(resolved, allowed) for allowed in self._allowed):
            raise OutsideRoot(
                f"{root} is not below a folder that this service may use; whoever starts it adds one with --allow-root"
            )
        return Workspace(resolved, self._journals, search=True)

    def _list_foreign(self, principal: Principal) -> list[WorkspaceEntry]:
        return [entry for entry in self._by_key.values() if entry.tenant not in (None, principal.tenant)]


def _is_nested(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _make_name(root: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", root.name).strip("-._")[:64]
