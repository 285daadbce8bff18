"""Folders and files of a cache that only its owner may look into: source text can be read out of them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder that is 0700, or see that one that is there is this user's own, and close it to all others.

    Folders above it that are missing are made in the same way. Raises OSError; PermissionError where it belongs to
    somebody else, who could change what is read from it.
    """
    for above in reversed([folder, *folder.parents]):
        if not above.exists():
            above.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _close_to_others(descriptor, folder, 0o700)
    finally:
        os.close(descriptor)


def make_private_file(path: Path) -> None:
    """As `make_private` for a file, which is 0600: made where there is none; a link is refused. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(errno.EPERM, "is not a regular file", str(path))
        _close_to_others(descriptor, path, 0o600)
    finally:
        os.close(descriptor)


def _close_to_others(descriptor: int, path: Path, mode: int) -> None:
    state = os.fstat(descriptor)
    if state.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "belongs to another user", str(path))
    if state.st_mode & 0o077:
        os.fchmod(descriptor, mode)
