"""The write-ahead journal of file writes, and locks on folders.

<folder>/<hash of the root>/         is locked by whoever writes below that root with this journal
                            <id>.json  of a write that goes on, or was broken off

The folder lies apart from the files, and only its owner writes there: what it says is done. A copy of the record lies
beside the files (`record_copies.py`), for those who have another journal; it is believed less. A record names only
paths below its root, and what is done about it is done by descriptors (`sandbox.py`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent_runtime.atomic_file import TEMPORARY, replace_file, sync_folder
from agent_runtime.errors import BadFile
from repo_cache.files import FOLDER_FLAGS, make_private, open_below

NUM_TRIES = 16
"""Times that folders are locked anew, because another folder had taken the place of one meanwhile."""

NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""How flock fails on a file system without locks of folders, such as NFS."""


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Wait until nobody else, in any process, holds this; a process that is killed holds it no more. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folders(root: Path, folders: Collection[str]) -> Iterator[None]:
    """Wait until nobody else holds any of these folders below the root, and hold them all.

    They are locked in order of device and inode, whatever they are called: two holders never wait for each other. A
    folder that is not there, cannot be listed or has no locks is left out. Raises BadFile where folders keep changing,
    or none can be opened any more.
    """
    for _ in range(NUM_TRIES):
        with contextlib.ExitStack() as opened:
            try:
                by_inode = _open_folders(root, folders, opened)
                for inode in sorted(by_inode):
                    _lock(by_inode[inode])
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
    """Lock a folder that was just made, for as long as the stack lasts; raises BlockingIOError, or OSError.

    Does not wait: this holder has locked other folders, and who holds this one may wait for those.
    """
    descriptor = open_below(root, folder, FOLDER_FLAGS)
    stack.callback(os.close, descriptor)
    _lock(descriptor, fcntl.LOCK_NB)


def _open_folders(root: Path, folders: Collection[str], stack: contextlib.ExitStack) -> dict[tuple[int, int], int]:
    """The descriptors of the folders by device and inode; the stack closes them, which gives their locks back."""
    by_inode = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            descriptor = open_below(root, folder, FOLDER_FLAGS)
            stack.callback(os.close, descriptor)
            state = os.fstat(descriptor)
            by_inode[state.st_dev, state.st_ino] = descriptor
    return by_inode


def _lock(descriptor: int, flags: int = 0) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


LOG = logging.getLogger("hunk.journal")

VERSION = 2
RECORD_ID = re.compile(r"[0-9a-f]{16}")
MAX_RECORD_BYTES = 64 << 20
"""A record longer than this is none of ours."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The change of one real path. `before` and `after` are what stands there (`ConfinedFolder.read_digest`).

    In the same folder `staged` holds the new bytes until they are renamed, and `kept` the old ones from then on until
    all is done; "" where there are none.
    """

    real: str
    before: str
    after: str
    staged: str
    kept: str


@dataclass(frozen=True, slots=True)
class Record:
    """One write. `committing`: all new bytes are on the disk, and names may have been changed.

    `folders` were not there before, the outermost first.
    """

    id: str
    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    committing: bool = False

    def find_home(self, entry: Entry) -> str:
        """The entry's folder, or where the write makes that one, the next above that was there before."""
        folder = entry.real.rpartition("/")[0]
        while folder in self.folders:
            folder = folder.rpartition("/")[0]
        return folder

    @property
    def homes(self) -> frozenset[str]:
        """The folders that the writer has locked; in each lies a copy of the record while names change."""
        return frozenset(map(self.find_home, self.entries))


class UnknownVersion(ValueError):
    """Another version of the program wrote the record, and may still want it."""


class Journal:
    """The records of writes below one root."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.root = root
        self._folder = folder / sha256(os.fsencode(root)).hexdigest()[:32]

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep all others with this journal from writing below the root; raises OSError."""
        make_private(self._folder.parent)
        make_private(self._folder)
        with lock_folder(self._folder):
            yield

    def has_records(self) -> bool:
        """Whether there is a record: of a write that goes on, or was broken off."""
        return any(self._folder.glob("*.json"))

    def read_records(self) -> list[Record]:
        """All records, while the journal is locked; those that cannot be read are said, and forgotten.

        One of another version is said and stays. What a note that was broken off has left is removed.
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
        """Put a record in place of the one with its id, at once; with `sync` it lasts through a power cut, too."""
        content = json.dumps({"version": VERSION, "root": os.fspath(self.root), **asdict(record)})
        replace_file(self._folder / f"{record.id}.json", content.encode("ascii"), sync=sync)
        for folder in (self._folder, *list(self._folder.parents)[:2]) if sync else ():  # the parents may be new, too
            sync_folder(folder)

    def remove(self, record: Record) -> None:
        """The write is over; raises OSError."""
        (self._folder / f"{record.id}.json").unlink(missing_ok=True)


def find_journals(folder: Path, root: Path) -> list[Journal]:
    """The journals with records whose root is this one, lies in it or around it; never raises OSError."""
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
    """The record as it was noted; raises UnknownVersion, or ValueError where it names anything but files of a write."""
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
    """Whether it is a relative path that leads nowhere else before it leads down."""
    if not isinstance(value, str) or "\0" in value:
        return False
    names = value.split("/")
    while names and names[0] == "..":
        del names[0]
    return bool(names) and not any(name in ("", ".", "..") for name in names)


def _read_json(path: Path) -> dict[str, Any]:
    """What a file says; raises OSError or ValueError."""
    with path.open("rb") as file:
        noted = json.loads(file.read(MAX_RECORD_BYTES))
    if not isinstance(noted, dict):
        raise ValueError("not a record")
    return noted
