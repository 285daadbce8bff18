"""Writes private files atomically. Workspace files have a writer of their own, which works relative to open folders."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

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
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
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
    """Put the names in a folder on the disk, so that a power cut does not undo a rename. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
