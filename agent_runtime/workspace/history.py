"""Keeps the old bytes of every file that Hunk writes, so that a write can be undone: `hunk log`, `hunk undo`.

`FileVersions` finds earlier versions of a workspace's files by their hashes: the base of an edit that comes late.

<folder>/<id>.json          what a write changed: time, root, and of each file its path and both hashes
<folder>/bytes/<sha256>     the bytes of a file before a write
<folder>/pruned             its time is that of the last look for what is too old or too much

The folder is private to its owner. Writes that are older than `MAX_DAYS` go, and the oldest ones where all together
take more than the limit. An entry is made before its write: a killed process leaves at worst one that undoes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from cachetools import LRUCache

from agent_runtime.errors import BadRequest, HunkError, NoSuchWrite, Stale
from agent_runtime.files import lock_folder, read_descriptor, replace_file
from agent_runtime.workspace.sandbox import ConfinedFolder
from repo_cache.files import READ_FLAGS, make_private

MAX_BYTES = 500_000_000
"""Default of the limit."""

MAX_DAYS = 30
PRUNE_SECONDS = 60.0
"""Least interval of looks for what is too old or too much; in between more may be kept."""

ID = re.compile(r"[0-9a-f]{12}")

LOG = logging.getLogger("hunk.history")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a write. `before` and `after` are the hashes of its bytes, None if there was or is no file."""

    path: str
    before: str | None
    after: str | None
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """One write of one file or several. `at`: seconds since 1970. undoes: the ID of the write that it took back."""

    id: str
    at: float
    root: str
    files: tuple[WrittenFile, ...]
    undoes: str | None = None

    def concerns(self, folder: Path) -> bool:
        """Return whether a file of the write is in this folder."""
        return any(Path(self.root, file.path).is_relative_to(folder) for file in self.files)


@dataclass(frozen=True, slots=True)
class OldFile:
    """A file as it is before a write, and its bytes after it; None where there is no file."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int | None = None


class History:
    """The writes of one user, in one folder. Thread-safe, and shared by processes."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        """`max_bytes` limits what is kept; 0 keeps nothing."""
        self._folder = folder
        self._bytes = folder / "bytes"
        self._max_bytes = max_bytes

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        return self._max_bytes > 0

    @classmethod
    def from_env(cls, environ: Mapping[str, str], cache_dir: Path) -> History:
        """Open the history in a cache folder with the limit of `HUNK_HISTORY`, in MB; raises BadRequest."""
        text = environ.get("HUNK_HISTORY", "").strip()
        try:
            limit = float(text) * 1e6 if text else MAX_BYTES
            return cls(cache_dir / "history", max(0, int(limit)))
        except (ValueError, OverflowError):
            raise BadRequest(f"HUNK_HISTORY is {text!r}: give a number of at least 0", field="HUNK_HISTORY") from None

    def record(self, root: Path, files: Sequence[OldFile], undoes: str | None = None) -> str | None:
        """Keep the old bytes of a write that is about to be made; return its ID, None if nothing was kept.

        A history that cannot be written is no reason not to write the files: the log says so.
        """
        files = [file for file in files if file.before != file.after]
        if not self._max_bytes or not files:
            return None
        write = Write(
            secrets.token_hex(6),
            time.time(),
            str(root),
            tuple(WrittenFile(file.path, _hash(file.before), _hash(file.after), file.mode) for file in files),
            undoes,
        )
        try:
            make_private(self._folder)
            make_private(self._bytes)
            with lock_folder(self._folder):
                for file in files:
                    if file.before is not None:
                        path = self._bytes / sha256(file.before).hexdigest()
                        if not path.exists():
                            replace_file(path, file.before, sync=False)
                replace_file(self._folder / f"{write.id}.json", json.dumps(asdict(write)).encode(), sync=False)
                if self._is_due():
                    self._prune()
        except OSError as error:
            LOG.warning("the write cannot be undone, %s: %s", self._folder, error.strerror or error)
            return None
        return write.id

    def forget(self, write_id: str) -> None:
        """Remove a write that was not made."""
        with suppress(OSError):
            (self._folder / f"{write_id}.json").unlink(missing_ok=True)

    def list_writes(self, folder: Path | None = None) -> list[Write]:
        """Return the writes, the newest first; with `folder` those of files in it."""
        found = (self._read(path) for path in self._list_entries())
        writes = [write for write in found if write is not None and (folder is None or write.concerns(folder))]
        return sorted(writes, key=lambda write: write.at, reverse=True)

    def find(self, write_id: str) -> Write:
        """Return a write by its ID or the beginning of it; raises NoSuchWrite."""
        found = [write for write in self.list_writes() if write.id.startswith(write_id)] if write_id else []
        if len(found) != 1:
            raise NoSuchWrite(f"{'no' if not found else 'more than one'} write is {write_id!r}; `hunk log` lists them")
        return found[0]

    def find_last(self, folder: Path) -> Write:
        """Return the newest write of files in a folder that is no undo and was not undone; raises NoSuchWrite."""
        writes = self.list_writes(folder)
        undone = list_undone(writes)
        for write in writes:
            if write.undoes is None and write.id not in undone:
                return write
        raise NoSuchWrite(f"no write in {folder} can be undone; `hunk log --all` lists those in other folders")

    def read_bytes(self, digest: str) -> bytes:
        """Return kept bytes; raises NoSuchWrite if they are gone or damaged."""
        try:
            data = (self._bytes / digest).read_bytes()
        except OSError:
            data = b""
        if sha256(data).hexdigest() != digest:
            raise NoSuchWrite("the old bytes of this write are not kept any more")
        return data

    def find_version(self, root: Path, path: str, digest: str) -> bytes | None:
        """Return the bytes with this hash that a write has replaced at `root`/`path`, None if they are not kept."""
        for write in self.list_writes(root):
            if any(file.before == digest and Path(write.root, file.path) == root / path for file in write.files):
                with suppress(NoSuchWrite):
                    return self.read_bytes(digest)
        return None

    def _list_entries(self) -> Iterator[Path]:
        return (path for path in self._folder.glob("*.json") if ID.fullmatch(path.stem))

    def _read(self, path: Path) -> Write | None:
        try:
            fields = json.loads(path.read_bytes())
            return Write(**fields | {"files": tuple(WrittenFile(**file) for file in fields["files"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _is_due(self) -> bool:
        """Return whether the last look is long ago, and note this one: a look reads all entries."""
        mark = self._folder / "pruned"
        try:
            is_due = time.time() - mark.stat().st_mtime >= PRUNE_SECONDS
        except FileNotFoundError:
            is_due = True
        if is_due:
            replace_file(mark, b"", sync=False)
        return is_due

    def _prune(self) -> None:
        """Remove old writes, and the oldest ones beyond the limit; then bytes that no write has."""
        sizes = {path.name: path.stat().st_size for path in self._bytes.iterdir()}
        total, kept, horizon = 0, set[str](), time.time() - MAX_DAYS * 86_400
        for number, write in enumerate(self.list_writes()):
            digests = {file.before for file in write.files if file.before}
            more = sum(sizes.get(digest, 0) for digest in digests - kept)
            if number and (write.at < horizon or total + more > self._max_bytes):
                self.forget(write.id)
                continue
            total, kept = total + more, kept | digests
        for name in sizes.keys() - kept:
            (self._bytes / name).unlink(missing_ok=True)


def _hash(data: bytes | None) -> str | None:
    return None if data is None else sha256(data).hexdigest()


def list_undone(writes: Sequence[Write]) -> set[str]:
    """Return the IDs of the writes that an undo took back which was not taken back itself; the newest come first."""
    undone: set[str] = set()
    for write in writes:
        if write.undoes is not None and write.id not in undone:
            undone.add(write.undoes)
    return undone


@contextmanager
def keep_old(
    history: History | None,
    root: ConfinedFolder,
    changes: Sequence[tuple[str, bytes | None]],
    undoes: str | None = None,
) -> Iterator[str | None]:
    """Keep what a write changes while the block makes it; yields the ID of the write, None if nothing is kept.

    changes: paths as they were sent, and the new bytes, None for no file. A removed link is not kept.
    """
    write_id = None
    if history is not None:
        old: list[OldFile] = []
        with suppress(HunkError, OSError):  # the write itself says what is wrong
            for sent, after in changes:
                real = root.resolve(sent, follow_last=after is not None)
                before, mode = _read_old(root, real)
                old.append(OldFile(real, before, after, mode))
        if len(old) == len(changes):
            write_id = history.record(root.root, old, undoes)
    try:
        yield write_id
    except BaseException:
        if history is not None and write_id is not None:
            history.forget(write_id)
        raise


def _read_old(root: ConfinedFolder, real: str) -> tuple[bytes | None, int | None]:
    """Return the bytes and the mode bits of a file before a write, None if there is none.

    Raises OSError for a link, also one that was put there meanwhile: what it leads to may lie outside. Raises BadFile.
    """
    try:
        with root.open_parent(real) as (folder, name):
            descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None, None
    mode = os.fstat(descriptor).st_mode & 0o777
    return read_descriptor(descriptor, real), mode


MAX_VERSION_BYTES = 64 << 20
"""Limit of the versions that are kept in memory for all folders; the least recently used ones go first."""

ENTRY_BYTES = 512
"""Counted for each version beside its bytes, since files may be empty."""

VersionSource = Callable[[str, str], bytes | None]
"""Returns the bytes of a file (real path below the root) with this SHA-256 in hex, None if they are not known."""


_versions: LRUCache[tuple[object, str, str], bytes] = LRUCache(
    MAX_VERSION_BYTES, getsizeof=lambda data: len(data) + ENTRY_BYTES
)
_versions_lock = threading.Lock()


class FileVersions:
    """The versions that were shown to a client or written, and those that other sources have. Thread-safe.

    A version is found only by the path that it was of: a hash alone gives nobody the text of another file.
    """

    def __init__(self, resolve: Callable[[str], str]) -> None:
        """`resolve` returns the real path of a path below the root; it may raise OutsideRoot, as then all methods."""
        self._resolve = resolve
        self._sources: list[VersionSource] = []
        self._owner = object()  # what one folder's tenant was shown is not another's, even below the same root later

    def add_source(self, source: VersionSource) -> None:
        """Ask this source, too, for what is not in memory."""
        self._sources.append(source)

    def keep(self, path: str, data: bytes) -> None:
        """Keep a version of the file at `path`."""
        if len(data) + ENTRY_BYTES <= MAX_VERSION_BYTES:
            key = self._owner, self._resolve(path), sha256(data).hexdigest()
            with _versions_lock:
                _versions[key] = data

    def find(self, path: str, digest: str) -> bytes | None:
        """Return the version of the file at `path` with this hash, None if it is not known."""
        path = self._resolve(path)
        with _versions_lock:
            kept = _versions.get((self._owner, path, digest))
        if kept is not None:
            return kept
        found = (source(path, digest) for source in self._sources)
        return next((data for data in found if data is not None and sha256(data).hexdigest() == digest), None)

    def find_base(self, path: str, digest: str | None, current: bytes) -> bytes | None:
        """Return the version with this hash that an edit was made for, None if it is the current one or none is named.

        Raises Stale if the version is not known.
        """
        now = sha256(current).hexdigest()
        if digest in (None, now):
            return None
        assert digest is not None
        found = self.find(path, digest)
        if found is None:
            raise Stale(
                f"{path} has changed since the version of the edit, which is not known here; read it again",
                current_sha256=now,
            )
        return found
