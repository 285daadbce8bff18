"""The write-ahead journal of file writes, the copies of its records, and locks on folders.

<folder>/<hash of the root>/             locked while a process writes below that root with this journal
                            <id>.json    record of a running or interrupted write

The journal is private to its owner, so its records are trusted. A record names only paths below its root, and recovery
opens them relative to open folders (`sandbox.py`).

<folder of a target>/.<id>.record.hunk   copy of a record, for processes with another journal or root; exists while the
                                         write renames files

A copy's paths are relative to its folder. A process that has locked all folders of a record and finds a copy knows that
the writer is gone. Anybody may put files into a repository, so a copy is trusted only

- if it contains its own inode number: no checkout, archive or other tool knows that before it makes the file;
- if every folder that it would change holds an equal copy: whoever made them may write in each of these folders, and so
  could have renamed the files without us. In a sticky folder (/tmp) that is not so; there a copy must belong to the
  current user.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import posixpath
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent_runtime.errors import BadFile, HunkError
from agent_runtime.files import TEMPORARY, lock_descriptor, lock_folder, read_descriptor, replace_file, sync_folder
from agent_runtime.workspace.sandbox import ConfinedFolder, is_below
from repo_cache.files import FOLDER_FLAGS, NEW_FILE_FLAGS, READ_FLAGS, make_private, open_below

NUM_TRIES = 16
"""Attempts to lock folders; another is made when a folder was replaced meanwhile."""

NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of flock on a file system that cannot lock folders, such as NFS."""


@contextlib.contextmanager
def lock_folders(root: Path, folders: Collection[str]) -> Iterator[None]:
    """Lock all of these folders below the root.

    They are locked in order of device and inode, so that two processes never deadlock. A folder that is missing, cannot
    be listed or has no locks is left out. Raises BadFile if folders keep changing, or cannot be opened.
    """
    for _ in range(NUM_TRIES):
        with contextlib.ExitStack() as opened:
            try:
                by_inode = _open_folders(root, folders, opened)
                for inode in sorted(by_inode):
                    _lock(by_inode[inode], opened)
                with contextlib.ExitStack() as again:
                    are_same = _open_folders(root, folders, again).keys() == by_inode.keys()
            except OSError as error:
                raise BadFile(
                    f"cannot lock the folders of the edit: {error.strerror or error}; nothing was changed"
                ) from error
            if are_same:
                yield
                return
    raise BadFile("the folders of the edit are renamed all the time; nothing was changed")


def lock_new_folder(root: Path, folder: str, stack: contextlib.ExitStack) -> None:
    """Lock a folder that was just made, until the stack is closed; raises BlockingIOError, or OSError.

    Does not wait, to avoid a deadlock: this process holds other folders, for which the holder of this one may wait.
    """
    descriptor = open_below(root, folder, FOLDER_FLAGS)
    stack.callback(os.close, descriptor)
    _lock(descriptor, stack, wait=False)


def _open_folders(root: Path, folders: Collection[str], stack: contextlib.ExitStack) -> dict[tuple[int, int], int]:
    """Return the folders' descriptors by device and inode; the stack closes them, which releases their locks."""
    by_inode = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            descriptor = open_below(root, folder, FOLDER_FLAGS)
            stack.callback(os.close, descriptor)
            state = os.fstat(descriptor)
            by_inode[state.st_dev, state.st_ino] = descriptor
    return by_inode


def _lock(descriptor: int, stack: contextlib.ExitStack, *, wait: bool = True) -> None:
    try:
        stack.enter_context(lock_descriptor(descriptor, wait=wait))
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


LOG = logging.getLogger("hunk.journal")

VERSION = 2
RECORD_ID = re.compile(r"[0-9a-f]{16}")
MAX_RECORD_BYTES = 64 << 20
"""A longer record is not ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The change of one real path. `before` and `after` are what stands there (`ConfinedFolder.read_digest`).

    `staged` is the name in the same folder of the new bytes before the rename, `kept` that of the old bytes after it,
    until the write is finished; "" if there are none.
    """

    real: str
    before: str
    after: str
    staged: str
    kept: str


@dataclass(frozen=True, slots=True)
class Record:
    """A write. `committing`: all new bytes are on the disk, and renames may have begun.

    `folders` are those that the write makes, the outermost first.
    """

    id: str
    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    committing: bool = False

    def find_home(self, entry: Entry) -> str:
        """Return the entry's folder, or the nearest folder above it that the write does not make."""
        folder = entry.real.rpartition("/")[0]
        while folder in self.folders:
            folder = folder.rpartition("/")[0]
        return folder

    @property
    def homes(self) -> frozenset[str]:
        """The folders that the writer locks; each holds a copy of the record during the renames."""
        return frozenset(map(self.find_home, self.entries))


class UnknownVersion(ValueError):
    """The record was written by another version of the program, which may still need it."""


class Journal:
    """Records of the writes below one root."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = root
        self._folder = folder / sha256(os.fsencode(root)).hexdigest()[:32]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the journal: one process at a time writes below the root with it. Raises OSError."""
        make_private(self._folder.parent)
        make_private(self._folder)
        with lock_folder(self._folder):
            yield

    def has_records(self) -> bool:
        """Whether there is a record of a running or interrupted write."""
        return any(self._folder.glob("*.json"))

    def read_records(self) -> list[Record]:
        """Return all records; the journal is locked. Unreadable records are logged and removed.

        A record of another version is logged and kept. Temporary files of interrupted calls of `write` are removed.
        """
        records = []
        for path in self._folder.glob(f"*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        for path in self._folder.glob("*.json"):
            try:
                records.append(parse_record(path.stem, _read_json(path)))
            except UnknownVersion:
                LOG.error("the journal %s is of another version of Hunk, and is left to that", path)
            except (OSError, ValueError, RecursionError):
                LOG.error("the journal %s cannot be read: files of a write that was broken off may be half done", path)
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        return records

    def write(self, record: Record, *, sync: bool) -> None:
        """Write a record atomically; with `sync` it survives a power cut, too. Raises OSError."""
        content = json.dumps({"version": VERSION, "root": os.fspath(self.root), **asdict(record)})
        replace_file(self._folder / f"{record.id}.json", content.encode("ascii"), sync=sync)
        for folder in (self._folder, *list(self._folder.parents)[:2]) if sync else ():  # the parents may be new, too
            sync_folder(folder)

    def remove(self, record: Record) -> None:
        """Remove the record of a finished write; raises OSError."""
        (self._folder / f"{record.id}.json").unlink(missing_ok=True)


def find_journals(folder: Path, root: Path) -> list[Journal]:
    """Return the journals with records of this root, of one in it or of one around it; never raises OSError."""
    roots = {root}
    for path in folder.glob("*/*.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            noted = _read_json(path)
            other = Path(noted["root"]) if isinstance(noted.get("root"), str) else root
            if other.is_relative_to(root) or root.is_relative_to(other):
                roots.add(other)
    journals = [Journal(folder, each) for each in sorted(roots)]
    return [journal for journal in journals if journal.has_records()]


def parse_record(record_id: str, noted: dict[str, Any]) -> Record:
    """Parse a record's JSON; raises UnknownVersion, or ValueError if it names anything but files of a write."""
    if noted.get("version") != VERSION:
        raise UnknownVersion if isinstance(noted.get("version"), int) else ValueError("no record")
    entries, folders, committing = (noted.get(key) for key in ("entries", "folders", "committing"))
    if noted.get("id") != record_id or not RECORD_ID.fullmatch(record_id) or not isinstance(committing, bool):
        raise ValueError("not a record of this write")
    if not isinstance(entries, list) or not isinstance(folders, list) or not all(map(_is_path, folders)):
        raise ValueError("a record of something else than files")
    return Record(record_id, tuple(_parse_entry(record_id, each) for each in entries), tuple(folders), committing)


def _parse_entry(record_id: str, noted: object) -> Entry:
    if not isinstance(noted, dict) or noted.keys() != set(Entry.__slots__):
        raise ValueError("not an entry")
    if not all(isinstance(value, str) for value in noted.values()) or not _is_path(noted["real"]):
        raise ValueError("an entry that names no file")
    for key, end in (("staged", r"\.hunk"), ("kept", r"\.old\.hunk")):
        if noted[key] and not re.fullmatch(rf"\.{record_id}-\d+{end}", noted[key], re.ASCII):
            raise ValueError("an entry that names a file of somebody else")
    return Entry(**noted)


def _is_path(value: object) -> bool:
    """Whether it is a relative, normalised path; '..' may stand at its beginning only."""
    if not isinstance(value, str) or "\0" in value:
        return False
    names = value.split("/")
    while names and names[0] == "..":
        del names[0]
    return bool(names) and not any(name in ("", ".", "..") for name in names)


def _read_json(path: Path) -> dict[str, Any]:
    """Read a file's JSON object; raises OSError or ValueError."""
    with path.open("rb") as file:
        noted = json.loads(file.read(MAX_RECORD_BYTES))
    if not isinstance(noted, dict):
        raise ValueError("not a record")
    return noted


COPY = re.compile(r"\.([0-9a-f]{16})\.record\.hunk", re.ASCII)

MAX_FOLDERS = 20_000
"""Limit of the folders searched at start; in others a copy is found before the next write there."""


@dataclass(frozen=True, slots=True)
class RecordCopy:
    """A copy's folder, and its record with paths relative to the root.

    If `above` is not 0, the record reaches so many folders above the root, and its paths are relative to `folder`.
    """

    folder: str
    record: Record
    above: int = 0


def write_copies(root: ConfinedFolder, record: Record) -> None:
    """Write and sync a copy in each of the record's folders; raises OSError. The folders are not synced."""
    for folder in record.homes:
        descriptor = open_below(root.root, folder, FOLDER_FLAGS)
        try:
            copy = os.open(_make_name(record.id), NEW_FILE_FLAGS, 0o600, dir_fd=descriptor)
            with os.fdopen(copy, "w", encoding="ascii") as file:
                inode = os.fstat(copy).st_ino
                json.dump({"version": VERSION, "inode": inode, **asdict(_relocate(record, folder))}, file)
                file.flush()
                os.fsync(copy)
        finally:
            os.close(descriptor)


def remove_copies(root: ConfinedFolder, record: Record) -> None:
    """Remove the copies of a finished write; raises OSError if one cannot be removed."""
    for folder in record.homes:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            descriptor = open_below(root.root, folder, FOLDER_FLAGS)
            try:
                os.unlink(_make_name(record.id), dir_fd=descriptor)
            finally:
                os.close(descriptor)


def has_copy(root: ConfinedFolder, record: Record) -> bool:
    """Whether any copy of the record exists; raises OSError."""
    for folder in record.homes:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            descriptor = open_below(root.root, folder, FOLDER_FLAGS)
            try:
                os.stat(_make_name(record.id), dir_fd=descriptor, follow_symlinks=False)
                return True
            finally:
                os.close(descriptor)
    return False


def find_copies(root: ConfinedFolder, folders: Iterable[str]) -> list[RecordCopy]:
    """Return the valid copies in these folders, and log the others. Raises OSError."""
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            descriptor = open_below(root.root, folder, FOLDER_FLAGS)
            try:
                with os.scandir(descriptor) as entries:
                    names = [entry.name for entry in entries if COPY.fullmatch(entry.name)]
                for name in names:
                    try:
                        found.append(_read_copy(descriptor, folder, name))
                    except UnknownVersion:
                        LOG.error("%s in %s is of another version of Hunk, and is left to that", name, folder or ".")
                    except (OSError, ValueError, RecursionError, HunkError):
                        LOG.error("%s in %s is no record that Hunk wrote there, and is ignored", name, folder or ".")
            finally:
                os.close(descriptor)
    return found


def find_folders_with_copies(root: ConfinedFolder) -> Iterator[str]:
    """Yield the folders below the root that hold a copy, of the first `MAX_FOLDERS` that can be listed."""
    waiting, seen = [""], 0
    while waiting and seen < MAX_FOLDERS:
        folder = waiting.pop()
        seen += 1
        with contextlib.suppress(OSError):
            descriptor = open_below(root.root, folder, FOLDER_FLAGS)
            try:
                with os.scandir(descriptor) as entries:
                    listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
            finally:
                os.close(descriptor)
            waiting += [f"{folder}/{name}".lstrip("/") for name, is_folder in listed if is_folder and name != ".git"]
            if any(COPY.fullmatch(name) for name, _ in listed):
                yield folder
    if waiting:
        LOG.info("of %s only %d folders were searched for writes that were broken off", root.root.name, MAX_FOLDERS)


def _make_name(record_id: str) -> str:
    return f".{record_id}.record.hunk"


def _read_copy(descriptor: int, folder: str, name: str) -> RecordCopy:
    """Read and check one copy; raises OSError, HunkError, ValueError or RecursionError."""
    copy = os.open(name, READ_FLAGS, dir_fd=descriptor)
    state = os.fstat(copy)
    noted = json.loads(read_descriptor(copy, name, MAX_RECORD_BYTES))
    if not isinstance(noted, dict) or noted.get("inode") != state.st_ino:
        raise ValueError("copied, or put there by somebody else")
    if os.fstat(descriptor).st_mode & stat.S_ISVTX and state.st_uid != os.geteuid():
        raise ValueError("another user's, where that one could not have renamed our files")
    match = COPY.fullmatch(name)
    assert match is not None
    record = parse_record(match[1], noted)
    return _resolve_copy(record, folder)


def _resolve_copy(record: Record, folder: str) -> RecordCopy:
    """Make the paths relative to the root, unless they reach above it; raises ValueError."""
    moved = _relocate(record, folder, back=True)
    above = max(each.real.split("/").count("..") for each in moved.entries) if moved.entries else 0
    if above:
        return RecordCopy(folder, record, above)
    paths = [*(each.real for each in moved.entries), *moved.folders]
    if not moved.entries or any(not is_below(Path("/") / path, Path("/")) or path.startswith("..") for path in paths):
        raise ValueError("it leads elsewhere")
    return RecordCopy(folder, moved)


def _relocate(record: Record, folder: str, *, back: bool = False) -> Record:
    """Make the record's paths relative to a folder below the root; with `back`, the reverse."""

    def move(path: str) -> str:
        return posixpath.normpath(posixpath.join(folder, path)) if back else posixpath.relpath(f"/{path}", f"/{folder}")

    entries = tuple(replace(each, real=move(each.real)) for each in record.entries)
    return replace(record, entries=entries, folders=tuple(move(each) for each in record.folders))
