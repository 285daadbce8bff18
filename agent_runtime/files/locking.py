"""Keeps other processes and threads out of folders while something in them is changed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from agent_runtime.errors import BadFile
from repo_cache.reading import FOLDER_FLAGS, open_below

NUM_TRIES = 16
"""Times that folders are locked anew, because another folder had taken the place of one meanwhile."""

NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""How flock fails on a file system without locks of folders, such as NFS."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until nobody else, in any process, holds this; a process that is killed holds it no more. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_below(root: Path, folders: Collection[str]) -> Iterator[None]:
    """Wait until nobody else holds any of these folders below the root, and hold them all.

    They are locked in order of device and inode, whatever they are called: two holders never wait for each other. A
    folder that is not there, cannot be listed or has no locks is left out. Raises BadFile where folders keep changing,
    or none can be opened any more.
    """
    for _ in range(NUM_TRIES):
        with contextlib.ExitStack() as opened:
            try:
                by_inode = _open_each(root, folders, opened)
                for inode in sorted(by_inode):
                    _lock(by_inode[inode])
                with contextlib.ExitStack() as again:
                    are_same = _open_each(root, folders, again).keys() == by_inode.keys()
            except OSError as error:
                raise BadFile(
                    f"cannot lock the folders of the edit: {error.strerror or error}; nothing was changed"
                ) from error
            if are_same:
                yield
                return
    raise BadFile("the folders of the edit are renamed all the time; nothing was changed")


def hold_new(root: Path, folder: str, stack: contextlib.ExitStack) -> None:
    """Lock a folder that was just made, for as long as the stack lasts; raises BlockingIOError, or OSError.

    Does not wait: this holder has locked other folders, and who holds this one may wait for those.
    """
    descriptor = open_below(root, folder, FOLDER_FLAGS)
    stack.callback(os.close, descriptor)
    _lock(descriptor, fcntl.LOCK_NB)


def _open_each(root: Path, folders: Collection[str], stack: contextlib.ExitStack) -> dict[tuple[int, int], int]:
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
