"""Reads files of a workspace safely, and creates cache files that only their owner can read."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 2 << 20
"""Default limit: longer files are skipped."""

MAX_SMALL_FILE_BYTES = 1 << 20
NUM_BINARY_BYTES = 8192
"""As in git, a NUL among the first of these bytes marks a binary file."""

NUM_READINGS = 3
SETTLE_NS = 2_500_000_000
"""More than the coarsest resolution of file times in use: 2 s on FAT, 1 s on older network file systems."""

IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point."""


def _join_flags(*names: str) -> int:
    """Join flags of `os.open` as far as this system has them: Windows lacks most, and others lack O_BINARY."""
    return reduce(or_, (getattr(os, name, 0) for name in names), 0)


READ_FLAGS = _join_flags("O_RDONLY", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_BINARY")
FOLLOWING_READ_FLAGS = READ_FLAGS & ~_join_flags("O_NOFOLLOW")
NEW_FILE_FLAGS = _join_flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_CLOEXEC", "O_NOFOLLOW", "O_BINARY")
FOLDER_FLAGS = _join_flags("O_RDONLY", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY")
ROOT_FLAGS = FOLDER_FLAGS & ~_join_flags("O_NOFOLLOW")
PASSAGE_FLAGS = FOLDER_FLAGS | _join_flags("O_PATH")  # O_PATH needs no permission to list the folder


class FileStat(NamedTuple):
    """The part of a stat that shows whether a file was changed, as in git's index."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class SkipReason(StrEnum):
    """Why a file has no tokens."""

    BINARY = "binary"
    NOT_UTF8 = "not UTF-8"
    TOO_LARGE = "too large"
    UNREADABLE = "unreadable"
    GONE = "gone"
    SPECIAL = "not a regular file"
    OUTSIDE = "links out of the workspace"
    NAME = "its name is not UTF-8"
    UNSTEADY = "changed at every reading"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file without tokens, or a folder whose files have none, and the reason."""

    path: str
    reason: SkipReason
    stat: FileStat | None = None


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file (strict UTF-8) and their stat.

    If `settled`, an unchanged stat proves unchanged bytes; otherwise the file must be hashed again at the next
    comparison.
    """

    data: bytes
    stat: FileStat
    settled: bool


def read_file(root: Path, path: str, *, max_file_bytes: int = MAX_FILE_BYTES) -> FileContent | Skipped:
    """Read one file, `path` relative to the root. Never raises OSError.

    A symbolic link is followed to a file of the workspace, but not through another link in it. A file that changes
    during the read is read again, a few times.
    """
    for _ in range(NUM_READINGS):
        try:
            content = _read_once(root, path, max_file_bytes)
        except OSError as error:
            return Skipped(path, get_skip_reason(error))
        if content is not None:
            return content
    return Skipped(path, SkipReason.UNSTEADY)


def is_settled(file: FileStat, looked_at_ns: int) -> bool:
    """Return whether a write after `looked_at_ns` (`time.time_ns()` before the read) would show in the stat.

    A write within the resolution of the file's times leaves them unchanged; git calls such entries racily clean
    (https://git-scm.com/docs/racy-git). Times in the future never settle.
    """
    return max(file.mtime_ns, file.ctime_ns) + SETTLE_NS < looked_at_ns


def to_file_stat(result: os.stat_result) -> FileStat:
    return FileStat(result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino)


def open_below(root: Path, path: str, flags: int) -> int:
    """Open a path below the root name by name, so that no symbolic link created meanwhile can lead out of the root.

    Raises OSError: ELOOP or ENOTDIR if a name is a symbolic link, PermissionError for '..' and the like.
    """
    names = path.split("/") if path else ["."]
    if path and any(name in ("", ".", "..") for name in names):
        raise PermissionError(errno.EACCES, "not a path below the root", path)
    at = os.open(root, ROOT_FLAGS | _join_flags("O_PATH"))
    for name in names[:-1]:
        try:
            below = os.open(name, PASSAGE_FLAGS, dir_fd=at)
        finally:
            os.close(at)
        at = below
    try:
        return os.open(names[-1], flags, dir_fd=at)
    finally:
        os.close(at)


def resolve_link(root: Path, path: str) -> str | None:
    """Return the path in the workspace that a symbolic link refers to; None if it leads out of it or into `.git`.

    Raises OSError if its target does not exist or it is circular.
    """
    top = Path(os.path.realpath(root))
    target = Path(os.path.realpath(top / path, strict=True))  # Path.resolve raises RuntimeError for circular links
    if not target.is_relative_to(top) or any(is_git(name) for name in target.relative_to(top).parts):
        return None
    return target.relative_to(top).as_posix()


def is_git(name: str) -> bool:
    """Return whether some file system treats a name as `.git`: capitals, ignored characters, or a suffix that is cut
    off.

    HFS+ and ext4 with case folding drop the characters that Unicode calls ignorable (git's CVE-2014-9390). FAT and NTFS
    cut trailing dots and spaces, and have short names and streams.
    """
    if not name.isascii():
        name = IGNORABLE.sub("", name)
    return name.lower().partition(":")[0].rstrip(" .") in (".git", "git~1")


def is_direct_link(root: Path, path: str, target: str) -> bool:
    """Return whether a symbolic link names its target directly, through no other link; False if it is gone."""
    link = Path(os.path.realpath(root)) / path
    try:
        named = link.parent / link.readlink()
    except OSError:
        return False
    return os.path.normpath(named) == os.path.normpath(Path(os.path.realpath(root)) / target)


def read_small_file(folder: Path, path: str) -> bytes | None:
    """Return the bytes of a regular configuration file (no link); None if it cannot be read."""
    try:
        descriptor = open_below(folder, path, READ_FLAGS)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with contextlib.suppress(OSError):
            return file.read(MAX_SMALL_FILE_BYTES)
    return None


def get_skip_reason(error: OSError) -> SkipReason:
    """Return why a path could not be opened."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
        return SkipReason.GONE
    return SkipReason.SPECIAL if error.errno in (errno.ENXIO, errno.ENODEV) else SkipReason.UNREADABLE


def _read_once(root: Path, path: str, max_file_bytes: int) -> FileContent | Skipped | None:
    """Read a file; None if it changed during the read."""
    descriptor = _open_regular(root, path)
    if isinstance(descriptor, SkipReason):
        return Skipped(path, descriptor)
    with os.fdopen(descriptor, "rb", buffering=0):
        looked_at_ns = time.time_ns()
        before = to_file_stat(os.fstat(descriptor))
        if before.size > max_file_bytes:
            return Skipped(path, SkipReason.TOO_LARGE, before)
        data = _read_bytes(descriptor, before.size + 1)
        if to_file_stat(os.fstat(descriptor)) != before or len(data) != before.size:
            return None
    if b"\0" in data[:NUM_BINARY_BYTES]:
        return Skipped(path, SkipReason.BINARY, before)
    try:
        data.decode()
    except UnicodeDecodeError:
        return Skipped(path, SkipReason.NOT_UTF8, before)
    return FileContent(data, before, is_settled(before, looked_at_ns))


def _open_regular(root: Path, path: str, *, follow: bool = True) -> int | SkipReason:
    """Return a descriptor of a regular file. Other kinds are not opened, which could trigger a device or a pipe."""
    folder, _, name = path.rpartition("/")
    parent = open_below(root, folder, PASSAGE_FLAGS)
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISREG(mode):
            return os.open(name, READ_FLAGS, dir_fd=parent)
    finally:
        os.close(parent)
    if not stat.S_ISLNK(mode) or not follow:
        return SkipReason.SPECIAL
    target = resolve_link(root, path)
    return SkipReason.OUTSIDE if target is None else _open_regular(root, target, follow=False)


def _read_bytes(descriptor: int, max_bytes: int) -> bytes:
    data = os.read(descriptor, max_bytes)
    while data and len(data) < max_bytes and (more := os.read(descriptor, max_bytes - len(data))):
        data += more
    return data


def make_private(folder: Path) -> None:
    """Create a folder with mode 0700, or check that an existing one belongs to this user and remove all other users'
    access.

    Missing parent folders are created in the same way. Raises OSError; PermissionError if the folder belongs to another
    user, who could change its files.
    """
    for above in reversed([folder, *folder.parents]):
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, ROOT_FLAGS)
    try:
        _restrict(descriptor, folder, 0o700)
    finally:
        os.close(descriptor)


def make_private_file(path: Path) -> None:
    """Do the same for a file with mode 0600, which is created if missing; a link is refused. Raises OSError."""
    flags = _join_flags("O_RDWR", "O_CREAT", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK")
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(errno.EPERM, "is not a regular file", str(path))
        _restrict(descriptor, path, 0o600)
    finally:
        os.close(descriptor)


def _restrict(descriptor: int, path: Path, mode: int) -> None:
    state = os.fstat(descriptor)
    if state.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to another user", str(path))
    if state.st_mode & 0o077:
        os.fchmod(descriptor, mode)
