"""Writes merged files atomically, one or several, with their journal.

All files are looked at before any is touched, and all new bytes are on the disk before the first name changes. An error
in the middle undoes what was done; what a process that was killed left is finished or undone at the next start, or
before the next write beside it. One file needs no more than its rename.

From the first look at a file to its rename its folder is locked: no edit is lost between writers of one file, whatever
root and journal they have.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from agent_runtime.errors import BadFile, FileMissing, OutsideRoot
from agent_runtime.workspace.journal import Entry, Journal, Record, lock_new_folder
from agent_runtime.workspace.record_copies import remove_copies, write_copies
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
from agent_runtime.workspace.sandbox import ABSENT, ConfinedFolder

GIT_NAMES = ("HEAD", "commondir", "objects", "refs")
"""Names by which git knows a repository that is not called `.git`."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """What is to become of one path: these bytes, or no file where `data` is None.

    `expected_sha256` is what stands there now, "" for nothing. `mode_of` is the path whose mode bits a new file takes.
    A link is followed to the file that is written; where a file is deleted, the link goes and the file stays.
    """

    path: str
    data: bytes | None
    expected_sha256: str
    mode_of: str | None = None


@dataclass(frozen=True, slots=True)
class _PlannedChange:
    """One change, what it does to which real path, and the file whose mode bits it takes."""

    change: FileChange
    entry: Entry
    like: os.stat_result | None

    @property
    def changes_nothing(self) -> bool:
        """Whether the bytes stand there already."""
        return self.entry.before == self.entry.after


def replace_file(path: Path, data: bytes, *, expected_sha256: str) -> None:
    """Put `data` in place of the file's bytes, if these still have the expected hash.

    A temporary file beside it is written, synced and renamed over it, so a reader sees the old bytes or the new ones.
    Mode bits stay; a symbolic link stays one, and its target is replaced; another hard link keeps the old bytes.
    Raises Stale (with the current hash), FileMissing or BadFile.
    """
    target = path.resolve()
    if not target.parent.is_dir():
        raise FileMissing(f"there is no file {path}")
    changes = [FileChange(target.name, data, expected_sha256)]
    root = ConfinedFolder(target.parent)
    try:
        _write_locked(root, changes, None)
    except InterruptedAbove as fault:  # whoever names the file may name the others, too
        recover_below(root, above=fault.above)
        write_files(root, changes)


def write_files(root: ConfinedFolder, changes: Sequence[FileChange], journal: Journal | None = None) -> None:
    """Make all changes below the root, or none; raises Stale (with the current hash), OutsideRoot or BadFile.

    Folders are made as they are needed, and stay where a deletion empties them.
    """
    try:
        _write_locked(root, changes, journal)
    except InterruptedAbove as fault:
        raise BadFile(str(fault)) from fault


def _write_locked(root: ConfinedFolder, changes: Sequence[FileChange], journal: Journal | None) -> None:
    """Do what `write_files` says; raises InterruptedAbove, too."""
    with (
        _lock_journal(root, journal, is_needed=len(changes) > 1) as kept,
        lock_targets(root, partial(_find_targets, root, changes)) as held,
    ):
        record_id = secrets.token_hex(8)
        planned = [_plan_change(root, change, f".{record_id}-{number}") for number, change in enumerate(changes)]
        _check_distinct(root, planned)
        planned = [plan for plan in planned if not plan.changes_nothing]
        if len(planned) == 1:  # its rename is all that there is to do, or to undo
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
    """No other write with this journal goes on below the root, and none of it is half done; gives the journal.

    One file does without where none can be kept: all that a killed process can leave is a temporary file. Writers with
    another journal, or another root, are met at the folders of the files (`lock_targets`).
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
    """Every real path that is looked at or changed, and the folder that is locked for it: the deepest that is there.

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
    """Look at what stands there; raises Stale where it is not what was expected."""
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
    """Two names of one file, such as a link and its target, cannot both be written."""
    seen: dict[str, str] = {}
    for plan in planned:
        file = root.resolve(plan.change.path)
        if file in seen:
            raise BadFile(f"{seen[file]} and {plan.change.path} are the same file; nothing was changed")
        seen[file] = plan.change.path


def _check_makes_no_repository(root: ConfinedFolder, entries: Sequence[Entry]) -> None:
    """Raise OutsideRoot where a file comes into a folder that git takes for a repository, if only then.

    Git runs programs that a repository's `config` and `hooks` name, and takes any folder for one that holds `HEAD` with
    `objects` and `refs`, or with `commondir` (setup.c, is_git_directory).
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
    """A path as a file system without case takes it."""
    return path.strip("/").lower()


def _list_git_names(folder: int) -> set[str]:
    """Which of the names that make a repository are in a folder."""
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
            _write_record(
                journal, record, is_needed=several
            )  # of a killed process; a power cut may leave temporary files
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
        with contextlib.suppress(OSError):  # it is written: what is left over is no fault of the edit
            clean_up(root, record.entries)
        _remove_record(root, record, journal)


def _write_record(journal: Journal | None, record: Record, *, is_needed: bool) -> None:
    """Raises BadFile where the journal is needed and cannot be written."""
    if journal is None:
        return
    try:
        journal.write(record, sync=record.committing)
    except OSError as error:
        if is_needed:
            raise BadFile(f"cannot write the journal: {error.strerror or error}; nothing was changed") from error


def _remove_record(root: ConfinedFolder, record: Record, journal: Journal | None) -> None:
    """All is done, or undone: a record that cannot be removed is seen to at the next start."""
    with contextlib.suppress(OSError):
        if record.committing:
            remove_copies(root, record)
        if journal is not None:
            journal.remove(record)


def _stage(root: ConfinedFolder, planned: Sequence[_PlannedChange], record: Record, made: contextlib.ExitStack) -> None:
    """Write all new bytes beside their targets, onto the disk; new folders are locked for as long as `made` lasts."""
    for missing in record.folders:
        with _translate_errors(missing):
            root.make_folder(missing)
            with contextlib.suppress(PermissionError):  # the umask lets nobody list it
                lock_new_folder(root.root, missing, made)
    for plan in planned:
        if plan.change.data is not None:
            with _translate_errors(plan.change.path), root.open_parent(plan.entry.real) as (folder, _):
                create_file(folder, plan.entry.staged, plan.change.data, plan.like)


def _sync_folders(root: ConfinedFolder, record: Record) -> None:
    """Have the names of what was staged last through a power cut."""
    named = [entry.real for entry in record.entries] + [*record.folders]
    for folder in {real.rpartition("/")[0] for real in named}:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            root.sync_folder(folder)
