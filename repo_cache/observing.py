"""Tells of changes by watchdog's observer of the platform, where that is not Linux."""

from __future__ import annotations

import os
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from repo_cache.debouncing import Debouncer
from repo_cache.ignoring import IgnoreRules

QUIET_EVENTS = ("opened", "closed_no_write")


class ObserverSource:
    """Watches the whole tree, ignored folders too; what is ignored is dropped as soon as it is told."""

    def __init__(self, root: Path, rules: IgnoreRules, changes: Debouncer) -> None:
        self._root = str(root)
        self._handler = _Handler(self._root, rules, changes)
        self._observer = Observer()

    def start(self) -> None:
        """What changes after this returns is told. Raises OSError."""
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
        """Every event comes here first."""
        if event.event_type in QUIET_EVENTS or (event.is_directory and event.event_type == "modified"):
            return
        for place in (event.src_path, event.dest_path):
            if place and os.fsdecode(place).startswith(self._prefix):
                self._pass_on(os.fsdecode(place).removeprefix(self._prefix), is_folder=event.is_directory)

    def _pass_on(self, path: str, *, is_folder: bool) -> None:
        governed = self._rules.governed_by(path)
        if governed is not None:
            self._rules.forget(governed)
            self._changes.touch(folders=[governed])
        elif not self._rules.ignores(path, is_folder=is_folder):
            self._changes.touch(folders=[path]) if is_folder else self._changes.touch([path])
