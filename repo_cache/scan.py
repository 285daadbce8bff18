"""Walks a workspace without opening its files."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from repo_cache.files import (
    FOLDER_FLAGS,
    MAX_FILE_BYTES,
    PASSAGE_FLAGS,
    FileStat,
    Skipped,
    SkipReason,
    get_skip_reason,
    is_direct_link,
    open_below,
    resolve_link,
    to_file_stat,
)
from repo_cache.ignore import FolderRules, IgnoreRules


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of one walk.

    `links` maps a symbolic link to the file in the workspace that it refers to; its stat in `files` is that file's.
    `loose` are links whose target can change without an event of the link or of its current target: they are broken, or
    lead to a folder, through another link, or to an ignored path. A folder in `skipped` could not be read, so its
    contents are unknown. `started_ns` is time.time_ns() before the walk.
    """

    files: Mapping[str, FileStat]
    links: Mapping[str, str]
    skipped: tuple[Skipped, ...]
    started_ns: int
    loose: frozenset[str] = frozenset()


def scan(root: Path, rules: IgnoreRules, *, below: str = "", max_file_bytes: int = MAX_FILE_BYTES) -> Scan:
    """Walk the workspace, or one folder of it, without opening a file. Never raises OSError.

    Ignored paths are neither in `files` nor in `skipped`; ignore rules are read again. Symbolic links to folders are
    not followed, and links to files only within the workspace. A missing or ignored folder gives an empty scan.
    """
    rules.forget(below)
    walk = _Walk(root, rules, max_file_bytes)
    walk.walk_folders(below)
    return walk.make_scan()


def scan_paths(root: Path, rules: IgnoreRules, paths: Iterable[str], *, max_file_bytes: int = MAX_FILE_BYTES) -> Scan:
    """Scan these paths alone; missing paths, folders and ignored paths are left out."""
    walk = _Walk(root, rules, max_file_bytes)
    for path in paths:
        folder, _, name = path.rpartition("/")
        within = rules.get_rules(folder)
        if within is not None:
            walk.visit_path(path, name, within)
    return walk.make_scan()


def list_folder(root: Path, folder: str) -> list[tuple[str, bool]]:
    """Return the UTF-8 names in a folder, and whether each is a folder. Raises OSError."""
    descriptor = open_below(root, folder, FOLDER_FLAGS)
    try:
        with os.scandir(descriptor) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if is_utf8(entry.name)]
    finally:
        os.close(descriptor)


def is_utf8(name: str) -> bool:
    """Return whether a name as returned by `os` is valid text."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


class _Walk:
    """Collects what a scan sees."""

    def __init__(self, root: Path, rules: IgnoreRules, max_file_bytes: int) -> None:
        self._root, self._rules, self._max_file_bytes = root, rules, max_file_bytes
        self._files: dict[str, FileStat] = {}
        self._links: dict[str, str] = {}
        self._loose: set[str] = set()
        self._skipped: list[Skipped] = []
        self._started_ns = time.time_ns()

    def make_scan(self) -> Scan:
        files, links = MappingProxyType(self._files), MappingProxyType(self._links)
        return Scan(files, links, tuple(self._skipped), self._started_ns, frozenset(self._loose))

    def walk_folders(self, top: str) -> None:
        pending = [top]
        while pending:
            folder = pending.pop()
            rules = self._rules.get_rules(folder)
            if rules is None:
                continue
            try:
                pending.extend(self._walk_folder(folder, rules))
            except OSError as error:
                self._skip(folder, get_skip_reason(error))

    def visit_path(self, path: str, name: str, rules: FolderRules) -> None:
        try:
            parent = open_below(self._root, path.rpartition("/")[0], PASSAGE_FLAGS)
            try:
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(parent)
        except OSError as error:
            self._skip(path, get_skip_reason(error))
            return
        if not stat.S_ISDIR(status.st_mode) and not rules.ignores(name, is_folder=False):
            self._add(path, status)

    def _walk_folder(self, folder: str, rules: FolderRules) -> list[str]:
        """Add the files of a folder, and return its subfolders that are not ignored."""
        prefix = folder + "/" if folder else ""
        descriptor = open_below(self._root, folder, FOLDER_FLAGS)
        try:
            with os.scandir(descriptor) as entries:
                return [prefix + entry.name for entry in entries if self._visit_entry(prefix, entry, rules)]
        finally:
            os.close(descriptor)

    def _visit_entry(self, prefix: str, entry: os.DirEntry[str], rules: FolderRules) -> bool:
        """Add a file; return whether the entry is a folder to walk."""
        is_folder = entry.is_dir(follow_symlinks=False)
        if rules.ignores(entry.name, is_folder=is_folder):
            return False
        if not is_utf8(entry.name):
            self._skip(prefix + entry.name, SkipReason.NAME)
            return False
        if not is_folder:
            try:
                self._add(prefix + entry.name, entry.stat(follow_symlinks=False))
            except OSError as error:
                self._skip(prefix + entry.name, get_skip_reason(error))
        return is_folder

    def _add(self, path: str, status: os.stat_result) -> None:
        if stat.S_ISLNK(status.st_mode):
            self._add_link(path)
        elif not stat.S_ISREG(status.st_mode):
            self._skip(path, SkipReason.SPECIAL)
        elif status.st_size > self._max_file_bytes:
            self._skip(path, SkipReason.TOO_LARGE, to_file_stat(status))
        else:
            self._files[path] = to_file_stat(status)

    def _add_link(self, path: str) -> None:
        self._loose.add(path)
        try:
            target = resolve_link(self._root, path)
            status = None if target is None else (self._root / target).lstat()
        except OSError as error:
            self._skip(path, get_skip_reason(error))
            return
        if target is None or status is None:
            self._skip(path, SkipReason.OUTSIDE)
        elif stat.S_ISDIR(status.st_mode) or self._rules.ignores(target, is_folder=False):
            return
        elif stat.S_ISLNK(status.st_mode):  # it was created a moment ago
            self._skip(path, SkipReason.GONE)
        else:
            self._links[path] = target
            self._add(path, status)
            if is_direct_link(self._root, path, target):
                self._loose.discard(path)

    def _skip(self, path: str, reason: SkipReason, status: FileStat | None = None) -> None:
        """Record a skipped path. A path that has disappeared meanwhile is not recorded, unless it is the root."""
        if reason != SkipReason.GONE or not path:
            readable = path if is_utf8(path) else os.fsencode(path).decode("utf-8", "backslashreplace")
            self._skipped.append(Skipped(readable, reason, status))


def merge_scans(scans: list[Scan]) -> Scan:
    """Merge several scans."""
    files: dict[str, FileStat] = {}
    links: dict[str, str] = {}
    skipped = {}
    for one in scans:
        files.update(one.files)
        links.update(one.links)
        skipped.update({skip.path: skip for skip in one.skipped})
    loose = frozenset(path for one in scans for path in one.loose)
    return Scan(files, links, tuple(skipped.values()), min(one.started_ns for one in scans), loose)
