"""Watches folders by Linux's inotify.

Only watchdog's bindings are used. Its own Linux observer also watches ignored folders, delays moves by half a second,
drops the kernel's overflow event, and wakes up whenever a file is opened.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from watchdog.observers.inotify_c import InotifyConstants, inotify_add_watch, inotify_init, inotify_rm_watch

from repo_cache.debouncer import Debouncer
from repo_cache.ignore import EXCLUDE_FILE, IgnoreRules
from repo_cache.scan import is_utf8, list_folder
from repo_cache.types import Notice, NoticeKind

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
    """`name` is '' for an event of the watched folder itself. `mask`: InotifyConstants."""

    watch: int
    mask: int
    name: str


class Watches:
    """An inotify instance and the folder of each watch. Raises OSError. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folders: dict[int, str] = {}
        self._watch_of: dict[str, int] = {}
        self.descriptor = inotify_init()
        if self.descriptor == -1:
            raise _make_last_error(str(root))
        os.set_inheritable(self.descriptor, False)
        os.set_blocking(self.descriptor, False)

    def add(self, folder: str) -> bool:
        """Watch a folder and return whether it was not watched before. Raises OSError."""
        watch = inotify_add_watch(self.descriptor, os.fsencode(self._root / folder), MASK)
        if watch == -1:
            raise _make_last_error(folder)
        if self.folders.get(watch) == folder:
            return False
        if watch in self.folders:  # it moved, and that event is still pending
            self.forget(watch)
        self.folders[watch] = folder
        self._watch_of[folder] = watch
        return True

    def forget(self, watch: int) -> None:
        """Forget a watch that the kernel has removed."""
        folder = self.folders.pop(watch)
        if self._watch_of.get(folder) == watch:
            del self._watch_of[folder]

    def drop(self, folder: str) -> None:
        """Remove a watch; its pending events then have an unknown watch."""
        watch = self._watch_of.pop(folder, None)
        if watch is not None:
            del self.folders[watch]
            inotify_rm_watch(self.descriptor, watch)

    def drop_below(self, folder: str) -> None:
        """Remove the watches below a folder, but not its own."""
        prefix = folder + "/" if folder else ""
        for known in [known for known in self._watch_of if known and known.startswith(prefix)]:
            self.drop(known)

    def read_events(self) -> Iterator[Event]:
        """Yield the pending events without blocking."""
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
        """Remove every watch; may be called again."""
        if self.descriptor != -1:
            os.close(self.descriptor)
            self.descriptor = -1


def _make_last_error(place: str) -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error), place)


GONE_SELF = InotifyConstants.IN_DELETE_SELF | InotifyConstants.IN_MOVE_SELF | InotifyConstants.IN_UNMOUNT
CAME = InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVED_TO | InotifyConstants.IN_ATTRIB
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
EXCLUDE_FOLDER = EXCLUDE_FILE.rpartition("/")[0]

WATCH_LIMIT = (
    "the system's limit of watched folders is reached, so {root} is polled instead; to raise it: "
    "sudo sysctl fs.inotify.max_user_watches=524288"
)
INSTANCE_LIMIT = (
    "the system's limit of inotify instances (or of open files) is reached, so {root} is polled instead; to raise it: "
    "sudo sysctl fs.inotify.max_user_instances=512"
)
OVERFLOW = (
    "more changes in {root} than the system's queue holds; the folder is scanned again. If this is frequent: "
    "sudo sysctl fs.inotify.max_queued_events=65536"
)

logger = logging.getLogger(__name__)


class WatchError(Exception):
    """Events are not available; the notice says why."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.message)
        self.notice = notice


class InotifySource:
    """Reads events in its own thread and reports them; `on_failed` is called from it when watching fails."""

    def __init__(self, root: Path, rules: IgnoreRules, changes: Debouncer, on_failed: Callable[[Notice], None]) -> None:
        self._root, self._rules, self._changes, self._on_failed = root, rules, changes, on_failed
        self._unreadable: set[str] = set()
        self._wake_read, self._wake_write = -1, -1
        self._thread = threading.Thread(target=self._run, name="repo-cache-inotify", daemon=True)

    def start(self) -> None:
        """Start watching; changes after this returns are reported. Raises WatchError."""
        self._watches = self._new_watches()
        try:
            self._watch_below("")
        except BaseException:
            self._watches.close()
            raise
        self._wake_read, self._wake_write = os.pipe()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and remove the watches."""
        if self._thread.ident is None or self._thread is threading.current_thread():
            return
        if self._thread.is_alive():
            os.write(self._wake_write, b"!")
            self._thread.join()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)

    def _run(self) -> None:
        try:
            while self._wait_for_events():
                self._process(self._watches.read_events())
        except WatchError as failure:
            self._on_failed(failure.notice)
        except Exception as error:  # the outermost loop
            logger.exception("watching failed")
            self._on_failed(Notice(NoticeKind.FAILED, f"watching {self._root} failed, it is polled: {error!r}"))
        finally:
            self._watches.close()

    def _wait_for_events(self) -> bool:
        """Block until there are events; return False once stopped."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        poller.register(self._watches.descriptor, select.POLLIN)
        return all(descriptor != self._wake_read for descriptor, _ in poller.poll())

    def _process(self, events: Iterable[Event]) -> None:
        """Report the events of one read of the kernel's queue. New folders are watched before they are reported."""
        paths, folders, stale_rules = set[str](), set[str](), set[str]()
        for watch, mask, name in events:
            if mask & InotifyConstants.IN_Q_OVERFLOW:
                self._restart()
                return
            folder = self._watches.folders.get(watch)
            if folder is None:  # a watch that was removed meanwhile
                continue
            if mask & InotifyConstants.IN_IGNORED:
                self._watches.forget(watch)
            if not name:
                self._process_self(folder, mask, folders)
                continue
            path = f"{folder}/{name}" if folder else name
            is_folder = bool(mask & InotifyConstants.IN_ISDIR)
            if not is_utf8(name) or (path in paths and not is_folder):
                continue
            governed = self._rules.get_governed_folder(path)
            if governed is not None:
                stale_rules.add(governed)
            if not self._rules.ignores(path, is_folder=is_folder):
                if is_folder:
                    self._process_folder(path, mask)
                (folders if is_folder else paths).add(path)
        for folder in stale_rules:
            self._watches.drop_below(folder)
            self._watch_below(folder)
        self._changes.touch(paths, folders | stale_rules)

    def _process_self(self, folder: str, mask: int, folders: set[str]) -> None:
        if not folder and mask & GONE_SELF:
            message = f"{self._root} was deleted, moved or unmounted; it is polled from here on, should it come back"
            raise WatchError(Notice(NoticeKind.ROOT_GONE, message))
        if mask & InotifyConstants.IN_UNMOUNT:
            folders.add(folder)

    def _process_folder(self, path: str, mask: int) -> None:
        if mask & InotifyConstants.IN_MOVED_FROM:
            self._watches.drop_below(path)
            self._watches.drop(path)
        elif mask & CAME and self._add(path):
            self._watch_below(path)

    def _watch_below(self, top: str) -> None:
        """Watch a folder and all of its subfolders that are not ignored.

        A folder is watched before its rules and names are read, so no change in between is missed. Rules that another
        thread read too early are forgotten at the end.
        """
        pending = [top]
        while pending:
            folder = pending.pop()
            self._add(folder)
            rules = self._rules.reload_rules(folder)
            if rules is None:
                continue
            try:
                names = [name for name, is_folder in list_folder(self._root, folder) if is_folder]
            except OSError as error:
                self._note_unreadable(folder, error)
                continue
            prefix = folder + "/" if folder else ""
            pending.extend(prefix + name for name in names if not rules.ignores(name, is_folder=True))
        self._rules.forget(top)
        if not top and (self._root / EXCLUDE_FOLDER).is_dir():
            self._add(EXCLUDE_FOLDER)

    def _add(self, folder: str) -> bool:
        """Watch a folder and return whether it was not watched before. Raises WatchError if the limit is reached."""
        try:
            return self._watches.add(folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                notice = Notice(NoticeKind.WATCH_LIMIT, WATCH_LIMIT.format(root=self._root))
                raise WatchError(notice) from error
            if not folder:
                raise WatchError(Notice(NoticeKind.ROOT_GONE, f"cannot watch {self._root}: {error}")) from error
            self._note_unreadable(folder, error)
            return False

    def _note_unreadable(self, folder: str, error: OSError) -> None:
        if error.errno in VANISHED or folder in self._unreadable:
            return
        self._unreadable.add(folder)
        message = f"{folder or self._root} cannot be watched and is left out ({error.strerror}); make it readable"
        self._changes.add_notice(Notice(NoticeKind.UNREADABLE, message))

    def _new_watches(self) -> Watches:
        try:
            return Watches(self._root)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                notice = Notice(NoticeKind.INSTANCE_LIMIT, INSTANCE_LIMIT.format(root=self._root))
            else:
                notice = Notice(NoticeKind.FAILED, f"inotify is not available, so {self._root} is polled: {error}")
            raise WatchError(notice) from error

    def _restart(self) -> None:
        """Create all watches again after events were lost."""
        self._watches.close()
        self._watches = self._new_watches()
        self._watch_below("")
        self._changes.request_rescan(Notice(NoticeKind.OVERFLOW, OVERFLOW.format(root=self._root)))
