"""Puts one file's new state in place of the old, and back, in an open folder."""

from __future__ import annotations

import contextlib
import os

from agent_runtime.errors import Stale
from agent_runtime.files.confined import NOTHING, Confined, mark_of
from agent_runtime.files.journal import Entry
from agent_runtime.files.limits import bytes_of
from repo_cache.reading import READ_FLAGS

SHA256_LEN = 64


def do(root: Confined, entry: Entry) -> None:
    """Put the new state in place of the old, which is kept; raises Stale where another stands there, or OSError.

    Looked at and renamed in the same open folder. What somebody writes between the two, microseconds later, is lost: no
    rename is told what it may replace. A file that comes up where none was is never lost.
    """
    with root.folder_of(entry.real) as (folder, name):
        now = mark_of(folder, name)
        if now != entry.before:
            raise stale(entry.real, now)
        if not entry.staged:
            if entry.kept:
                os.rename(name, entry.kept, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        elif entry.before == NOTHING:
            _put_new(folder, entry.staged, name)
        else:
            if entry.kept:
                _keep(folder, name, entry.kept)
            os.rename(entry.staged, name, src_dir_fd=folder, dst_dir_fd=folder)


def put_back(root: Confined, entry: Entry) -> None:
    """Put the old state in place of the new; raises OSError, or Stale where a file came up where one was deleted."""
    with root.folder_of(entry.real) as (folder, name):
        if entry.before == NOTHING:
            os.unlink(name, dir_fd=folder)
        elif entry.after == NOTHING:
            _put_new(folder, entry.kept, name)
        else:
            os.rename(entry.kept, name, src_dir_fd=folder, dst_dir_fd=folder)


def write_new(folder: int, name: str, data: bytes, like: os.stat_result | None) -> None:
    """Write a file that is not there yet, onto the disk, with the mode bits and the owner of another; raises OSError.

    Without one it gets what the umask leaves, as any new file does. The bits that have a program run as its owner go,
    as they do where a file is written in place; the owner stays as far as this process may give files away.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(name, flags, 0o666 if like is None else 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, like.st_mode & 0o777)
        os.fsync(descriptor)


def stale(path: str, now: str) -> Stale:
    """That something else stands at a path than the edit was made for; `now` is its mark."""
    current = now if len(now) == SHA256_LEN else ""
    return Stale(f"{path} changed while the edit was made; apply it again", current_sha256=current)


def _put_new(folder: int, old_name: str, new_name: str) -> None:
    """Rename to where nothing stands; raises Stale, or OSError."""
    try:
        os.link(old_name, new_name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise stale(new_name, mark_of(folder, new_name)) from None
    except OSError:  # a file system without hard links
        if (now := mark_of(folder, new_name)) != NOTHING:
            raise stale(new_name, now) from None
        os.rename(old_name, new_name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    os.unlink(old_name, dir_fd=folder)


def _keep(folder: int, name: str, kept: str) -> None:
    """Give the file a second name; where it can have none, make a copy. Raises OSError."""
    try:
        os.link(name, kept, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:  # done before this was broken off
        return
    except OSError:
        with contextlib.suppress(FileNotFoundError):  # of a copy that was broken off
            os.unlink(kept, dir_fd=folder)
        descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
        like = os.fstat(descriptor)
        write_new(folder, kept, bytes_of(descriptor, name), like)
