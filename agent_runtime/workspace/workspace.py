"""Reads the files below one root, and writes one or several of them atomically.

All files are checked before any is changed, and all new bytes are on the disk before the first rename. An error undoes
the renames so far. What a killed process left is finished or undone at the next start, or before the next write in the
same folder. A single file needs no more than its rename.

A file's folder is locked from the check to the rename, so that concurrent writers lose no edit, whatever root and
journal they use.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from agent_runtime.errors import BadFile, FileMissing, HunkError, OutsideRoot, Stale
from agent_runtime.files import read_file, write_temporary
from agent_runtime.request_context import CancelToken
from agent_runtime.types import ApplyResult, FileResult
from agent_runtime.workspace.history import FileVersions, History, keep_old
from agent_runtime.workspace.journal import (
    LOG,
    Entry,
    Journal,
    Record,
    find_journals,
    lock_new_folder,
    remove_copies,
    write_copies,
)
from agent_runtime.workspace.recovery import (
    InterruptedAbove,
    clean_up,
    commit_entry,
    create_file,
    lock_targets,
    make_stale_error,
    recover,
    recover_below,
    undo,
)
from agent_runtime.workspace.sandbox import ABSENT, HAS_FOLDER_HANDLES, ConfinedFolder


class Workspace:
    """A root folder. Paths are relative to it and, with all symbolic links followed, must end inside it.

    `.git` counts as outside: git runs programs from there.
    """

    def __init__(
        self, root: Path, journals: Path | None = None, *, search: bool = False, history: History | None = None
    ) -> None:
        """Open the folder, and recover interrupted writes: those in `journals`, which holds the journals of all roots.

        `history` keeps what is written over.
        With `search`, record copies next to the files are recovered, too. Raises BadRequest if the root is no folder.
        """
        self._files = ConfinedFolder(root)
        self.root = self._files.root
        self._journal = None if journals is None else Journal(journals, self.root)
        self.history, self.journals, self.versions = history, journals, FileVersions(self._files.resolve)
        if history is not None:
            self.versions.add_source(partial(history.find_version, self.root))
        if journals is not None:
            self._recover_journals(journals)
        if search:
            recover_below(self._files)

    def read(self, path: str) -> bytes:
        """Read a file; raises OutsideRoot, FileMissing, TooLarge or BadFile."""
        return self._files.read(path)

    def read_and_keep(self, path: str) -> bytes:
        """Read a file that is shown to a client, who may send an edit of this version later; raises as `read`."""
        self.versions.keep(path, data := self.read(path))
        return data

    def read_if_there(self, path: str) -> bytes | None:
        """Read a file, None if there is none; raises OutsideRoot, TooLarge or BadFile."""
        try:
            return self.read(path)
        except FileMissing:
            return None

    def write(self, files: Sequence[FileResult]) -> str:
        """Write merged files, all or none; return the ID that undoes it, "" if nothing was kept.

        Raises Stale, BadFile or OutsideRoot.

        All paths are those before the edit: two files may swap places. Files that are written already are skipped, also
        if they were moved.
        """
        files = [file for file in files if file.status != "noop"]
        before = {file.path: file.sha256_before for file in files if file.sha256_before}
        wanted: dict[str, FileChange] = {}
        for file in files:
            if file.action in ("delete", "move"):
                wanted.setdefault(file.path, FileChange(file.path, None, file.sha256_before))
        for file in files:
            if file.action != "delete":
                path = file.move_to or file.path
                mode_of = file.path if file.move_to else None
                wanted[path] = FileChange(path, file.data, before.get(path, ""), mode_of)
        changes = list(wanted.values())
        with keep_old(self.history, self._files, [(change.path, change.data) for change in changes]) as write_id:
            write_files(self._files, changes, self._journal)
        for change in changes:
            if change.data is not None:
                self.versions.keep(change.path, change.data)
        return write_id or ""

    def _recover_journals(self, journals: Path) -> None:
        """Recover the interrupted writes in these journals below this root, or below one around it."""
        for journal in find_journals(journals, self.root):
            try:
                with journal.lock():
                    recover(ConfinedFolder(journal.root), journal)
            except (OSError, HunkError) as error:
                LOG.error("the journal of %s cannot be read: %s", journal.root, error)


def write_if_merged(workspace: Workspace, result: ApplyResult, cancel: CancelToken) -> ApplyResult:
    """Write the files of a merged result, all or none; other results are returned unchanged.

    Raises Stale, BadFile or OutsideRoot as `Workspace.write` does, and the token's error if the request is cancelled:
    then nothing is written.
    """
    if result.status != "merged":
        return result
    cancel.raise_if_cancelled()
    return replace(result, write_id=workspace.write(result.files), written=True)


GIT_NAMES = ("HEAD", "commondir", "objects", "refs")
"""Names by which git recognises a repository that is not called `.git`."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """The new content of one path: these bytes, or no file if `data` is None.

    `expected_sha256` is the hash of the current file, "" if there is none. `mode_of` is the path whose mode bits a new
    file takes. Writing follows a symbolic link; deleting removes the link and keeps its target.
    """

    path: str
    data: bytes | None
    expected_sha256: str
    mode_of: str | None = None


@dataclass(frozen=True, slots=True)
class _PlannedChange:
    """A change, its journal entry, and the stat of the file whose mode bits it takes."""

    change: FileChange
    entry: Entry
    like: os.stat_result | None

    @property
    def changes_nothing(self) -> bool:
        """Whether the file has the new bytes already."""
        return self.entry.before == self.entry.after


def replace_file(path: Path, data: bytes, *, expected_sha256: str, history: History | None = None) -> str:
    """Replace a file's bytes if they still have the expected hash; return the ID that undoes it, as `Workspace.write`.

    A temporary file in the same folder is written, synced and renamed over it, so a reader sees the old bytes or the
    new ones. Mode bits are kept; a symbolic link is kept and its target replaced; another hard link keeps the old
    bytes. Raises Stale (with the current hash), FileMissing or BadFile.
    """
    target = path.resolve()
    if not target.parent.is_dir():
        raise FileMissing(f"there is no file {path}")
    if not HAS_FOLDER_HANDLES:
        _replace_by_path(target, data, expected_sha256)
        return ""
    changes = [FileChange(target.name, data, expected_sha256)]
    root = ConfinedFolder(target.parent)
    with keep_old(history, root, [(target.name, data)]) as write_id:
        try:
            _write_locked(root, changes, None)
        except InterruptedAbove as fault:  # whoever may write this file may write the others, too
            recover_below(root, above=fault.above)
            write_files(root, changes)
    return write_id or ""


def _replace_by_path(path: Path, data: bytes, expected_sha256: str) -> None:
    """Do what `replace_file` does, without locks, on a system that opens no files relative to a folder (Windows)."""
    current = sha256(read_file(path)).hexdigest() if path.exists() else ABSENT
    if current != expected_sha256:
        raise Stale(f"{path} changed while the edit was merged; nothing was written", current_sha256=current)
    try:
        with write_temporary(path, data, sync=True) as temporary:
            if path.exists():
                shutil.copymode(path, temporary)
            temporary.replace(path)
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}") from error


def write_files(root: ConfinedFolder, changes: Sequence[FileChange], journal: Journal | None = None) -> None:
    """Make all changes below the root, or none; raises Stale (with the current hash), OutsideRoot or BadFile.

    Missing folders are made; folders that a deletion empties stay.
    """
    try:
        _write_locked(root, changes, journal)
    except InterruptedAbove as fault:
        raise BadFile(str(fault)) from fault


def _write_locked(root: ConfinedFolder, changes: Sequence[FileChange], journal: Journal | None) -> None:
    """Do the work of `write_files`; raises InterruptedAbove, too."""
    with (
        _lock_journal(root, journal, is_needed=len(changes) > 1) as kept,
        lock_targets(root, partial(_find_targets, root, changes)) as held,
    ):
        record_id = secrets.token_hex(8)
        planned = [_plan_change(root, change, f".{record_id}-{number}") for number, change in enumerate(changes)]
        _check_distinct(root, planned)
        planned = [plan for plan in planned if not plan.changes_nothing]
        if len(planned) == 1:  # a single rename needs no backup
            planned = [replace(plan, entry=replace(plan.entry, kept="")) for plan in planned]
        _check_makes_no_repository(root, [plan.entry for plan in planned if plan.change.data is not None])
        with _translate_errors("the folders of the edit"):
            folders = dict.fromkeys(folder for plan in planned for folder in root.find_missing_folders(plan.entry.real))
        record = Record(record_id, tuple(plan.entry for plan in planned), tuple(sorted(folders)))
        if not record.homes.issubset(held):
            raise BadFile("a folder of the edit was made or removed just now; nothing was changed, apply it again")
        if planned:
            _write(root, planned, record, kept)


@contextlib.contextmanager
def _lock_journal(root: ConfinedFolder, journal: Journal | None, *, is_needed: bool) -> Iterator[Journal | None]:
    """Lock the journal and recover its interrupted writes; yields the journal.

    If it cannot be used and is not needed, yields None: a write of one file can leave no more than a temporary file.
    Writers with another journal or root are kept out by the locks on the files' folders (`lock_targets`).
    """
    with contextlib.ExitStack() as stack:
        try:
            if journal is not None:
                stack.enter_context(journal.lock())
                recover(root, journal)
        except OSError as error:
            if is_needed:
                raise BadFile(f"cannot write the journal: {error.strerror or error}; nothing was changed") from error
            journal = None
        yield journal


def _find_targets(root: ConfinedFolder, changes: Sequence[FileChange]) -> dict[str, str]:
    """Map every real path that is read or changed to the folder to lock: its deepest existing one.

    Raises OutsideRoot, BadRequest or BadFile.
    """
    reals = {root.resolve(change.path) for change in changes}
    reals |= {root.resolve(change.path, follow_last=False) for change in changes if change.data is None}
    targets = {}
    for real in reals:
        folder = real.rpartition("/")[0]
        with contextlib.suppress(NotADirectoryError), _translate_errors(real):
            missing = root.find_missing_folders(real)
            folder = missing[0].rpartition("/")[0] if missing else folder
        targets[real] = folder
    return targets


@contextlib.contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}; nothing was changed") from error


def _plan_change(root: ConfinedFolder, change: FileChange, name: str) -> _PlannedChange:
    """Check a path's current content and plan its change; raises Stale if the content is not the expected one."""
    like = (
        None
        if change.mode_of is None
        else root.call_with_real_path(change.mode_of, lambda real: _read_stat(root, real))
    )
    staged, kept = f"{name}.hunk", f"{name}.old.hunk"
    if not change.expected_sha256:
        assert change.data is not None, "nothing is there to delete"
        real = root.resolve(change.path)
        with _translate_errors(change.path):
            now = root.read_digest(real)
        if now != ABSENT:
            raise make_stale_error(change.path, now)
        return _PlannedChange(change, Entry(real, ABSENT, sha256(change.data).hexdigest(), staged, ""), like)
    current = sha256(root.read(change.path)).hexdigest()
    if current != change.expected_sha256:
        raise make_stale_error(change.path, current)
    if change.data is None:
        real = root.resolve(change.path, follow_last=False)
        with _translate_errors(change.path):
            _check_writable(root, real, ".")
            entry = Entry(real, root.read_digest(real), ABSENT, "", kept)
        return _PlannedChange(change, entry, None)
    real = root.resolve(change.path)
    with _translate_errors(change.path):
        _check_writable(root, real, real.rpartition("/")[2])
        like = _read_stat(root, real)
    return _PlannedChange(change, Entry(real, current, sha256(change.data).hexdigest(), staged, kept), like)


def _read_stat(root: ConfinedFolder, real: str) -> os.stat_result:
    with root.open_parent(real) as (folder, name):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _check_writable(root: ConfinedFolder, real: str, name: str) -> None:
    with root.open_parent(real) as (folder, _):
        if not os.access(name, os.W_OK, dir_fd=folder):
            raise PermissionError(13, "it is write-protected")


def _check_distinct(root: ConfinedFolder, planned: Sequence[_PlannedChange]) -> None:
    """Raise BadFile if two changes name the same file, such as a link and its target."""
    seen: dict[str, str] = {}
    for plan in planned:
        file = root.resolve(plan.change.path)
        if file in seen:
            raise BadFile(f"{seen[file]} and {plan.change.path} are the same file; nothing was changed")
        seen[file] = plan.change.path


def _check_makes_no_repository(root: ConfinedFolder, entries: Sequence[Entry]) -> None:
    """Raise OutsideRoot if a file is written into a folder that git takes for a repository, now or after the write.

    Git runs programs that a repository's `config` and `hooks` name. A folder is a repository to git if it holds `HEAD`
    with `objects` and `refs`, or with `commondir` (setup.c, is_git_directory).
    """
    written = {_casefold(folder) for entry in entries for folder in (entry.real, *_list_parents(entry.real))}
    for entry in entries:
        with _translate_errors(entry.real):
            held = {folder: _list_git_names(descriptor) for folder, descriptor in root.open_parents(entry.real)}
        for folder in _list_parents(entry.real):
            names = held.get(folder, set()) | {name for name in GIT_NAMES if _casefold(f"{folder}/{name}") in written}
            if "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names):
                raise OutsideRoot(
                    f"path {entry.real} leads into a folder that is a git repository by what it holds, or would be; "
                    "git runs programs from there"
                )


def _list_parents(real: str) -> list[str]:
    names = real.split("/")
    return ["/".join(names[:end]) for end in range(len(names))]


def _casefold(path: str) -> str:
    """Normalise a path as a case-insensitive file system does."""
    return path.strip("/").lower()


def _list_git_names(folder: int) -> set[str]:
    """Return the names in a folder by which git recognises a repository."""
    held = set()
    for name in GIT_NAMES:
        with contextlib.suppress(OSError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            held.add(name)
    return held


def _write(root: ConfinedFolder, planned: Sequence[_PlannedChange], record: Record, journal: Journal | None) -> None:
    several = len(planned) > 1
    with contextlib.ExitStack() as made:
        try:
            _write_record(journal, record, is_needed=several)  # not synced: a power cut may leave temporary files
            _stage(root, planned, record, made)
            record = replace(record, committing=several)
            if several:
                with _translate_errors("the record of the write"):
                    write_copies(root, record)
            _sync_folders(root, record)
            if several:
                _write_record(journal, record, is_needed=True)
            for plan in planned:
                with _translate_errors(plan.change.path):
                    commit_entry(root, plan.entry)
        except BaseException as error:
            lost = undo(root, record)
            _remove_record(root, record, journal)
            if lost:
                where = f"their old bytes lie beside them as .{record.id}-*.old.hunk"
                raise BadFile(
                    f"writing failed ({error}), and these could not be put back: {', '.join(lost)}; {where}"
                ) from error
            raise
        with contextlib.suppress(OSError):  # the files are written; leftovers do not fail the edit
            clean_up(root, record.entries)
        _remove_record(root, record, journal)


def _write_record(journal: Journal | None, record: Record, *, is_needed: bool) -> None:
    """Write the record to the journal; raises BadFile if it is needed and cannot be written."""
    if journal is None:
        return
    try:
        journal.write(record, sync=record.committing)
    except OSError as error:
        if is_needed:
            raise BadFile(f"cannot write the journal: {error.strerror or error}; nothing was changed") from error


def _remove_record(root: ConfinedFolder, record: Record, journal: Journal | None) -> None:
    """Remove the record of a finished or undone write; one that cannot be removed is recovered at the next start."""
    with contextlib.suppress(OSError):
        if record.committing:
            remove_copies(root, record)
        if journal is not None:
            journal.remove(record)


def _stage(root: ConfinedFolder, planned: Sequence[_PlannedChange], record: Record, made: contextlib.ExitStack) -> None:
    """Write all new bytes to the disk next to their targets; new folders stay locked until `made` is closed."""
    for missing in record.folders:
        with _translate_errors(missing):
            root.make_folder(missing)
            with contextlib.suppress(PermissionError):  # the umask may forbid listing it
                lock_new_folder(root.root, missing, made)
    for plan in planned:
        if plan.change.data is not None:
            with _translate_errors(plan.change.path), root.open_parent(plan.entry.real) as (folder, _):
                create_file(folder, plan.entry.staged, plan.change.data, plan.like)


def _sync_folders(root: ConfinedFolder, record: Record) -> None:
    """Put the names of staged files on the disk."""
    named = [entry.real for entry in record.entries] + [*record.folders]
    for folder in {real.rpartition("/")[0] for real in named}:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            root.sync_folder(folder)
