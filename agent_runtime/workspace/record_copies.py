"""Copies of a write's journal record next to its targets, for processes with another journal or root.

    <folder of a target>/.<id>.record.hunk   exists while the write renames files

Its paths are relative to its folder. A process that has locked all folders of a record and finds a copy knows that the
writer is gone. Anybody may put files into a repository, so a copy is trusted only

- if it contains its own inode number: no checkout, archive or other tool knows that before it makes the file;
- if every folder that it would change holds an equal copy: whoever made them may write in each of these folders, and so
  could have renamed the files without us. In a sticky folder (/tmp) that is not so; there a copy must belong to the
  current user.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agent_runtime.errors import HunkError
from agent_runtime.limits import bytes_of
from agent_runtime.workspace.journal import LOG, MAX_RECORD_BYTES, VERSION, Record, UnknownVersion, parse_record
from agent_runtime.workspace.sandbox import ConfinedFolder, is_below
from repo_cache.files import FOLDER_FLAGS, READ_FLAGS, open_below

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
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            copy = os.open(_make_name(record.id), flags, 0o600, dir_fd=descriptor)
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
    noted = json.loads(bytes_of(copy, name, MAX_RECORD_BYTES))
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
