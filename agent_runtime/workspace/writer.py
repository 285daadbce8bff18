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
from agent_runtime.workspace.journal import Entry, Journal, Record, hold_new
from agent_runtime.workspace.record_copies import remove_copies, write_copies
from agent_runtime.workspace.recovery import (
    BrokenOffAbove,
    clean_up,
    do,
    hold_folders,
    recover,
    recover_below,
    stale,
    undo,
    write_new,
)
from agent_runtime.workspace.sandbox import NOTHING, Confined

OF_GIT = ("HEAD", "commondir", "objects", "refs")
"""Names by which git knows a repository that is not called `.git`."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of one path: these bytes, or no file where `data` is None.

    `expected_sha256` is what stands there now, "" for nothing. `mode_of` is the path whose mode bits a new file takes.
    A link is followed to the file that is written; where a file is deleted, the link goes and the file stays.
    """

    path: str
    data: bytes | None
    expected_sha256: str
    mode_of: str | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """One change, what it does to which real path, and the file whose mode bits it takes."""

    change: Change
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
    changes = [Change(target.name, data, expected_sha256)]
    root = Confined(target.parent)
    try:
        _write_all(root, changes, None)
    except BrokenOffAbove as fault:  # whoever names the file may name the others, too
        recover_below(root, above=fault.above)
        write_all(root, changes)


def write_all(root: Confined, changes: Sequence[Change], journal: Journal | None = None) -> None:
    """Make all changes below the root, or none; raises Stale (with the current hash), OutsideRoot or BadFile.

    Folders are made as they are needed, and stay where a deletion empties them.
    """
    try:
        _write_all(root, changes, journal)
    except BrokenOffAbove as fault:
        raise BadFile(str(fault)) from fault


def _write_all(root: Confined, changes: Sequence[Change], journal: Journal | None) -> None:
    """Do what `write_all` says; raises BrokenOffAbove, too."""
    with (
        _journal_locked(root, journal, is_needed=len(changes) > 1) as kept,
        hold_folders(root, partial(_targets, root, changes)) as held,
    ):
        record_id = secrets.token_hex(8)
        planned = [_plan(root, change, f".{record_id}-{number}") for number, change in enumerate(changes)]
        _check_distinct(root, planned)
        planned = [plan for plan in planned if not plan.changes_nothing]
        if len(planned) == 1:  # its rename is all that there is to do, or to undo
            planned = [replace(plan, entry=replace(plan.entry, kept="")) for plan in planned]
        _check_makes_no_repository(root, [plan.entry for plan in planned if plan.change.data is not None])
        with _named("the folders of the edit"):
            folders = dict.fromkeys(folder for plan in planned for folder in root.missing_folders(plan.entry.real))
        record = Record(record_id, tuple(plan.entry for plan in planned), tuple(sorted(folders)))
        if not record.homes.issubset(held):
            raise BadFile("a folder of the edit was made or removed just now; nothing was changed, apply it again")
        if planned:
            _write(root, planned, record, kept)


@contextlib.contextmanager
def _journal_locked(root: Confined, journal: Journal | None, *, is_needed: bool) -> Iterator[Journal | None]:
    """No other write with this journal goes on below the root, and none of it is half done; gives the journal.

    One file does without where none can be kept: all that a killed process can leave is a temporary file. Writers with
    another journal, or another root, are met at the folders of the files (`hold_folders`).
    """
    with contextlib.ExitStack() as stack:
        try:
            if journal is not None:
                stack.enter_context(journal.locked())
                recover(root, journal)
        except OSError as error:
            if is_needed:
                raise BadFile(f"cannot write the journal: {error.strerror or error}; nothing was changed") from error
            journal = None
        yield journal


def _targets(root: Confined, changes: Sequence[Change]) -> dict[str, str]:
    """Every real path that is looked at or changed, and the folder that is locked for it: the deepest that is there.

    Raises OutsideRoot, BadRequest or BadFile.
    """
    reals = {root.real(change.path) for change in changes}
    reals |= {root.real(change.path, follow_last=False) for change in changes if change.data is None}
    targets = {}
    for real in reals:
        folder = real.rpartition("/")[0]
        with contextlib.suppress(NotADirectoryError), _named(real):
            missing = root.missing_folders(real)
            folder = missing[0].rpartition("/")[0] if missing else folder
        targets[real] = folder
    return targets


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}; nothing was changed") from error


def _plan(root: Confined, change: Change, name: str) -> _Planned:
    """Look at what stands there; raises Stale where it is not what was expected."""
    like = None if change.mode_of is None else root.at(change.mode_of, lambda real: _state(root, real))
    staged, kept = f"{name}.hunk", f"{name}.old.hunk"
    if not change.expected_sha256:
        assert change.data is not None, "nothing is there to delete"
        real = root.real(change.path)
        with _named(change.path):
            now = root.mark(real)
        if now != NOTHING:
            raise stale(change.path, now)
        return _Planned(change, Entry(real, NOTHING, sha256(change.data).hexdigest(), staged, ""), like)
    current = sha256(root.read(change.path)).hexdigest()
    if current != change.expected_sha256:
        raise stale(change.path, current)
    if change.data is None:
        real = root.real(change.path, follow_last=False)
        with _named(change.path):
            _check_writable(root, real, ".")
            entry = Entry(real, root.mark(real), NOTHING, "", kept)
        return _Planned(change, entry, None)
    real = root.real(change.path)
    with _named(change.path):
        _check_writable(root, real, real.rpartition("/")[2])
        like = _state(root, real)
    return _Planned(change, Entry(real, current, sha256(change.data).hexdigest(), staged, kept), like)


def _state(root: Confined, real: str) -> os.stat_result:
    with root.folder_of(real) as (folder, name):
        return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _check_writable(root: Confined, real: str, name: str) -> None:
    with root.folder_of(real) as (folder, _):
        if not os.access(name, os.W_OK, dir_fd=folder):
            raise PermissionError(13, "it is write-protected")


def _check_distinct(root: Confined, planned: Sequence[_Planned]) -> None:
    """Two names of one file, such as a link and its target, cannot both be written."""
    seen: dict[str, str] = {}
    for plan in planned:
        file = root.real(plan.change.path)
        if file in seen:
            raise BadFile(f"{seen[file]} and {plan.change.path} are the same file; nothing was changed")
        seen[file] = plan.change.path


def _check_makes_no_repository(root: Confined, entries: Sequence[Entry]) -> None:
    """Raise OutsideRoot where a file comes into a folder that git takes for a repository, if only then.

    Git runs programs that a repository's `config` and `hooks` name, and takes any folder for one that holds `HEAD` with
    `objects` and `refs`, or with `commondir` (setup.c, is_git_directory).
    """
    written = {_fold(folder) for entry in entries for folder in (entry.real, *_folders_above(entry.real))}
    for entry in entries:
        with _named(entry.real):
            held = {folder: _held_by(descriptor) for folder, descriptor in root.folders_on(entry.real)}
        for folder in _folders_above(entry.real):
            names = held.get(folder, set()) | {name for name in OF_GIT if _fold(f"{folder}/{name}") in written}
            if "HEAD" in names and ("commondir" in names or {"objects", "refs"} <= names):
                raise OutsideRoot(
                    f"path {entry.real} leads into a folder that is a git repository by what it holds, or would be; "
                    "git runs programs from there"
                )


def _folders_above(real: str) -> list[str]:
    names = real.split("/")
    return ["/".join(names[:end]) for end in range(len(names))]


def _fold(path: str) -> str:
    """A path as a file system without case takes it."""
    return path.strip("/").lower()


def _held_by(folder: int) -> set[str]:
    """Which of the names that make a repository are in a folder."""
    held = set()
    for name in OF_GIT:
        with contextlib.suppress(OSError):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
            held.add(name)
    return held


def _write(root: Confined, planned: Sequence[_Planned], record: Record, journal: Journal | None) -> None:
    several = len(planned) > 1
    with contextlib.ExitStack() as made:
        try:
            _note(journal, record, is_needed=several)  # of a killed process; a power cut may leave temporary files
            _stage(root, planned, record, made)
            record = replace(record, committing=several)
            if several:
                with _named("the record of the write"):
                    write_copies(root, record)
            _sync_folders(root, record)
            if several:
                _note(journal, record, is_needed=True)
            for plan in planned:
                with _named(plan.change.path):
                    do(root, plan.entry)
        except BaseException as error:
            lost = undo(root, record)
            _forget(root, record, journal)
            if lost:
                where = f"their old bytes lie beside them as .{record.id}-*.old.hunk"
                raise BadFile(
                    f"writing failed ({error}), and these could not be put back: {', '.join(lost)}; {where}"
                ) from error
            raise
        with contextlib.suppress(OSError):  # it is written: what is left over is no fault of the edit
            clean_up(root, record.entries)
        _forget(root, record, journal)


def _note(journal: Journal | None, record: Record, *, is_needed: bool) -> None:
    """Raises BadFile where the journal is needed and cannot be written."""
    if journal is None:
        return
    try:
        journal.note(record, sync=record.committing)
    except OSError as error:
        if is_needed:
            raise BadFile(f"cannot write the journal: {error.strerror or error}; nothing was changed") from error


def _forget(root: Confined, record: Record, journal: Journal | None) -> None:
    """All is done, or undone: a record that cannot be removed is seen to at the next start."""
    with contextlib.suppress(OSError):
        if record.committing:
            remove_copies(root, record)
        if journal is not None:
            journal.forget(record)


def _stage(root: Confined, planned: Sequence[_Planned], record: Record, made: contextlib.ExitStack) -> None:
    """Write all new bytes beside their targets, onto the disk; new folders are locked for as long as `made` lasts."""
    for missing in record.folders:
        with _named(missing):
            root.make_folder(missing)
            with contextlib.suppress(PermissionError):  # the umask lets nobody list it
                hold_new(root.root, missing, made)
    for plan in planned:
        if plan.change.data is not None:
            with _named(plan.change.path), root.folder_of(plan.entry.real) as (folder, _):
                write_new(folder, plan.entry.staged, plan.change.data, plan.like)


def _sync_folders(root: Confined, record: Record) -> None:
    """Have the names of what was staged last through a power cut."""
    named = [entry.real for entry in record.entries] + [*record.folders]
    for folder in {real.rpartition("/")[0] for real in named}:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            root.sync_folder(folder)
