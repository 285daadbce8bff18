"""Reads files up to a size limit, replaces private files atomically, and locks folders.

Workspace files have a writer of their own (`workspace.workspace`), which works relative to open folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from agent_runtime.errors import BadFile, FileMissing, TooLarge
from repo_cache.files import FOLLOWING_READ_FLAGS, NEW_FILE_FLAGS, ROOT_FLAGS

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    HAS_FLOCK = False
else:
    HAS_FLOCK = True

MAX_FILE_BYTES = 8 << 20
"""Source files are far smaller: a larger file is data."""

MAX_EDIT_BYTES = 2 << 20


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file; raises FileMissing, TooLarge or BadFile, which say what to do."""
    try:
        check_regular(path.stat(), str(path))  # before opening, which alone can start a device
        return read_descriptor(os.open(path, FOLLOWING_READ_FLAGS), str(path))
    except FileNotFoundError:
        raise FileMissing(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise BadFile(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def read_descriptor(descriptor: int, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Read an open file and close it; raises TooLarge, BadFile if it is no regular file, or OSError.

    Checks the opened file, since its path may name another one by now. Reads at most one byte more than the limit, even
    if the file grows meanwhile.
    """
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        state = os.fstat(descriptor)
        check_regular(state, name)
        check_size(state.st_size, name, limit)
        data = bytearray()
        while len(data) <= limit and (more := file.read(min(limit + 1 - len(data), max(state.st_size, 1) + 1))):
            data += more
    check_size(len(data), name, limit)
    return bytes(data)


def check_regular(state: os.stat_result, name: str) -> None:
    """Raise BadFile for a folder, a pipe, a device, a link."""
    if S_ISDIR(state.st_mode):
        raise BadFile(f"{name} is a directory; name a file in it")
    if not S_ISREG(state.st_mode):
        raise BadFile(f"{name} is not a regular file")


def check_size(num_bytes: int, what: str, limit: int) -> None:
    """Raise TooLarge if `num_bytes` is over `limit`."""
    if num_bytes > limit:
        raise TooLarge(f"{what} is {num_bytes / 1e6:.1f} MB; the limit is {limit / 1e6:.1f} MB")


TEMPORARY = ".new"
"""End of a temporary file's name; a killed process leaves one."""


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file of mode 0600 and rename it to `path`, so that a reader sees the old bytes or the new ones.

    With `sync` the new bytes are on the disk before the rename. Raises OSError, and then leaves no temporary file.
    """
    with write_temporary(path, data, sync=sync) as temporary:
        temporary.replace(path)


@contextlib.contextmanager
def write_temporary(path: Path, data: bytes, *, sync: bool) -> Iterator[Path]:
    """Write a temporary file of mode 0600 in the folder of `path`; it is removed afterwards. Raises OSError."""
    temporary = path.with_name(f".{secrets.token_hex(8)}{TEMPORARY}")
    descriptor = os.open(temporary, NEW_FILE_FLAGS, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, so that a power cut does not undo a rename. Raises OSError.

    Windows opens no folders, and so does nothing here.
    """
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other threads and processes; the kernel releases it if the process dies. Raises OSError."""
    if os.name == "nt":
        from filelock import FileLock

        with FileLock(folder / ".lock"):
            yield
        return
    descriptor = os.open(folder, ROOT_FLAGS)
    try:
        with lock_descriptor(descriptor):
            yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_descriptor(descriptor: int, *, wait: bool = True) -> Iterator[None]:
    """Lock an open file or folder until the block ends or the process dies.

    Raises OSError; BlockingIOError if it is locked and `wait` is false. Where the system has no flock, a file of this
    user in the temporary folder is locked instead: other users' processes are not kept out then.
    """
    if HAS_FLOCK:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield  # closing the descriptor releases it
        return
    from filelock import FileLock, Timeout

    state = os.fstat(descriptor)
    lock = FileLock(Path(tempfile.gettempdir()) / f"hunk-{state.st_dev}-{state.st_ino}.lock", mode=0o600)
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout as error:
        raise BlockingIOError(errno.EWOULDBLOCK, "is locked") from error
    try:
        yield
    finally:
        lock.release()
