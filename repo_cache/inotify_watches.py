"""Watches on folders of a workspace by Linux's inotify, and what the kernel says of them; by watchdog's bindings."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from watchdog.observers.inotify_c import InotifyConstants, inotify_add_watch, inotify_init, inotify_rm_watch

MASK = (
    InotifyConstants.IN_CREATE
    | InotifyConstants.IN_DELETE
    | InotifyConstants.IN_MOVE
    | InotifyConstants.IN_MODIFY
    | InotifyConstants.IN_CLOSE_WRITE
    | InotifyConstants.IN_ATTRIB
    | InotifyConstants.IN_DELETE_SELF
    | InotifyConstants.IN_MOVE_SELF
    | InotifyConstants.IN_ONLYDIR
    | InotifyConstants.IN_DONT_FOLLOW
    | InotifyConstants.IN_EXCL_UNLINK
)
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
READ_BYTES = 256 << 10


class Event(NamedTuple):
    """`name` is '' where the event is about the watched folder itself. `mask`: InotifyConstants."""

    watch: int
    mask: int
    name: str


class Watches:
    """An inotify instance and the folder that each of its watches is on; raises OSError. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folders: dict[int, str] = {}
        self._watch_of: dict[str, int] = {}
        self.descriptor = inotify_init()
        if self.descriptor == -1:
            raise _last_error(str(root))
        os.set_inheritable(self.descriptor, False)
        os.set_blocking(self.descriptor, False)

    def add(self, folder: str) -> bool:
        """Whether the folder was not watched before; raises OSError."""
        watch = inotify_add_watch(self.descriptor, os.fsencode(self._root / folder), MASK)
        if watch == -1:
            raise _last_error(folder)
        if self.folders.get(watch) == folder:
            return False
        if watch in self.folders:  # it moved, of which the event is still under way
            self.forget(watch)
        self.folders[watch] = folder
        self._watch_of[folder] = watch
        return True

    def forget(self, watch: int) -> None:
        """The kernel gave the watch up."""
        folder = self.folders.pop(watch)
        if self._watch_of.get(folder) == watch:
            del self._watch_of[folder]

    def drop(self, folder: str) -> None:
        """Give a watch back; events of it that are still under way are of an unknown watch then."""
        watch = self._watch_of.pop(folder, None)
        if watch is not None:
            del self.folders[watch]
            inotify_rm_watch(self.descriptor, watch)

    def drop_below(self, folder: str) -> None:
        """Give back the watches below a folder, but not its own."""
        prefix = folder + "/" if folder else ""
        for known in [known for known in self._watch_of if known and known.startswith(prefix)]:
            self.drop(known)

    def events(self) -> Iterator[Event]:
        """What came since the last call; does not block."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _, name_len = EVENT.unpack_from(data, at)
            at += EVENT.size + name_len
            yield Event(watch, mask, os.fsdecode(data[at - name_len : at].rstrip(b"\0")))

    def close(self) -> None:
        """Give every watch back; may be called again."""
        if self.descriptor != -1:
            os.close(self.descriptor)
            self.descriptor = -1


def _last_error(place: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error), place)
