"""Watches folders where inotify does not work: on other platforms and on network file systems."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from repo_cache.debouncer import Debouncer
from repo_cache.files import MAX_FILE_BYTES, is_settled
from repo_cache.ignore import IgnoreRules
from repo_cache.scan import Scan, scan
from repo_cache.types import Notice, NoticeKind

logger = logging.getLogger(__name__)

MAX_SHARE = 0.1
"""The largest share of time for walking: a slow walk is done less often."""


class PollingSource:
    """Compares the stats of successive walks. `interval_s` is the minimum time between two walks."""

    def __init__(
        self,
        root: Path,
        rules: IgnoreRules,
        changes: Debouncer,
        *,
        interval_s: float,
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        self._root, self._rules, self._changes = root, rules, changes
        self._interval_s, self._max_file_bytes = interval_s, max_file_bytes
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repo-cache-polling", daemon=True)

    def start(self) -> None:
        """Start polling; changes after this returns are found."""
        self._seen = self._scan()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which may finish its current walk."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        duration_s = 0.0
        while not self._stopped.wait(max(self._interval_s, duration_s / MAX_SHARE - duration_s)):
            began = time.monotonic()
            try:
                self._poll()
            except Exception as error:  # the outermost loop: the next walk may do better
                logger.exception("a walk failed")
                notice = Notice(NoticeKind.FAILED, f"a walk of {self._root} failed and is tried again: {error!r}")
                self._changes.request_rescan(notice)
            duration_s = time.monotonic() - began

    def _poll(self) -> None:
        seen, self._seen = self._seen, self._scan()
        self._changes.touch(find_changed_paths(seen, self._seen))

    def _scan(self) -> Scan:
        return scan(self._root, self._rules, max_file_bytes=self._max_file_bytes)


def find_changed_paths(before: Scan, after: Scan) -> set[str]:
    """Return paths that were added, removed, or changed in stat or link, and those whose earlier stat was not settled.

    An unsettled file was written just before it was scanned, so a second write may not show in its stat.
    """
    changed = {
        path
        for path, stat in after.files.items()
        if before.files.get(path) != stat or not is_settled(stat, before.started_ns)
    }
    changed |= before.files.keys() - after.files.keys()
    changed |= {path for path, _ in before.links.items() ^ after.links.items()}
    return changed


QUIET_EVENTS = ("opened", "closed_no_write")


class ObserverSource:
    """Watches the whole tree, including ignored folders, whose events are dropped."""

    def __init__(self, root: Path, rules: IgnoreRules, changes: Debouncer) -> None:
        self._root = str(root)
        self._handler = _Handler(self._root, rules, changes)
        self._observer = Observer()

    def start(self) -> None:
        """Start watching; changes after this returns are reported. Raises OSError."""
        self._observer.schedule(self._handler, self._root, recursive=True)
        self._observer.start()

    def stop(self) -> None:
        """End the observer's threads."""
        self._observer.stop()
        if self._observer.is_alive():
            self._observer.join()


class _Handler(FileSystemEventHandler):
    def __init__(self, root: str, rules: IgnoreRules, changes: Debouncer) -> None:
        self._prefix, self._rules, self._changes = root + os.sep, rules, changes

    def dispatch(self, event: FileSystemEvent) -> None:
        """Handle every event; called by watchdog."""
        if event.event_type in QUIET_EVENTS or (event.is_directory and event.event_type == "modified"):
            return
        for place in (event.src_path, event.dest_path):
            if place and os.fsdecode(place).startswith(self._prefix):
                self._report(os.fsdecode(place).removeprefix(self._prefix), is_folder=event.is_directory)

    def _report(self, path: str, *, is_folder: bool) -> None:
        governed = self._rules.get_governed_folder(path)
        if governed is not None:
            self._rules.forget(governed)
            self._changes.touch(folders=[governed])
        elif not self._rules.ignores(path, is_folder=is_folder):
            self._changes.touch(folders=[path]) if is_folder else self._changes.touch([path])


MOUNTINFO = Path("/proc/self/mountinfo")

REMOTE_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "glusterfs"}
    | {"9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "drvfs"}  # shared folders of a virtual machine's host
)
LOCAL_FUSE_TYPES = frozenset({"fuse.fuse-overlayfs", "fuse.bindfs", "fuse.lxcfs", "fuse.portal", "fuse.gvfsd-fuse"})


def find_remote_file_system(root: Path, mountinfo: Path = MOUNTINFO) -> str | None:
    """Return the type of a network mount that contains the root or lies within it ('nfs4'); None if there is none.

    Every FUSE file system counts (sshfs, s3fs, rclone) except those known to be local. Systems without this file report
    none. Format: proc(5), /proc/pid/mountinfo.
    """
    try:
        lines = mountinfo.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    under, inside = ("", ""), []
    for place, kind in map(_parse_mount, lines):
        if root == Path(place) or root.is_relative_to(place):
            under = max(
                (place, kind), under, key=lambda mount: len(mount[0])
            )  # the later of two at one place hides the other
        elif Path(place).is_relative_to(root):
            inside.append(kind)
    return next((kind for kind in [under[1], *inside] if _is_remote(kind)), None)


def _parse_mount(line: str) -> tuple[str, str]:
    """Return mount point and type of '36 35 98:0 /root /the\\040point rw - ext3 /dev/sda rw'."""
    before, _, behind = line.partition(" - ")
    place = before.split(" ")[4]
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), place), behind.split(" ")[0]


def _is_remote(kind: str) -> bool:
    return kind in REMOTE_TYPES or (kind.startswith("fuse.") and kind not in LOCAL_FUSE_TYPES)
