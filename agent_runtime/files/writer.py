"""Writes merged files in place of the old ones: wholly or not at all, one file or several.

All files are looked at before any is touched, and all new bytes are on the disk before the first name changes. An error
in the middle undoes what was done; where a journal is kept, the next start finishes or undoes what a process that was
killed left. One file needs no more than its rename.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from agent_runtime.errors import BadFile, FileMissing
from agent_runtime.files.confined import NOTHING, Confined
from agent_runtime.files.journal import Entry, Journal, Record
from agent_runtime.files.locking import locked
from agent_runtime.files.recovery import clean_up, recover, undo
from agent_runtime.files.renaming import do, stale, write_new


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
    write_all(Confined(target.parent), [Change(target.name, data, expected_sha256)])


def write_all(root: Confined, changes: Sequence[Change], journal: Journal | None = None) -> None:
    """Make all changes below the root, or none; raises Stale (with the current hash), OutsideRoot or BadFile.

    Folders are made as they are needed, and stay where a deletion empties them.
    """
    with _alone(root, journal, is_needed=len(changes) > 1) as kept:
        record_id = secrets.token_hex(8)
        planned = [_plan(root, change, f".{record_id}-{number}") for number, change in enumerate(changes)]
        _check_distinct(root, planned)
        planned = [plan for plan in planned if not plan.changes_nothing]
        if len(planned) == 1:  # its rename is all that there is to do, or to undo
            planned = [replace(plan, entry=replace(plan.entry, kept="")) for plan in planned]
        with _named("the folders of the edit"):
            folders = dict.fromkeys(folder for plan in planned for folder in root.missing_folders(plan.entry.real))
        record = Record(record_id, tuple(plan.entry for plan in planned), tuple(sorted(folders)))
        if planned:
            _write(root, planned, record, kept)


@contextlib.contextmanager
def _alone(root: Confined, journal: Journal | None, *, is_needed: bool) -> Iterator[Journal | None]:
    """No other write goes on below the root, and none is half done; gives the journal.

    One file does without where none can be kept: all that a killed process can leave is a temporary file. Two writers
    of it would each find the old bytes and rename their own over them, and one edit be lost that was told to be done:
    without the journal's lock they meet at one of the root itself, as far as its file system has locks.
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
        if journal is None:
            with contextlib.suppress(OSError):
                stack.enter_context(locked(root.root))
        yield journal


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


def _write(root: Confined, planned: Sequence[_Planned], record: Record, journal: Journal | None) -> None:
    several = len(planned) > 1
    try:
        if journal is not None:
            with _named("the journal"):
                journal.note(record, sync=False)  # of a killed process; a power cut may leave temporary files
        _stage(root, planned, record)
        record = replace(record, committing=several)
        if journal is not None and several:
            with _named("the journal"):
                journal.note(record, sync=True)
        for plan in planned:
            with _named(plan.change.path):
                do(root, plan.entry)
    except BaseException as error:
        lost = undo(root, record)
        if journal is not None:
            journal.forget(record)
        if lost:
            where = f"their old bytes lie beside them as .{record.id}-*.old.hunk"
            raise BadFile(
                f"writing failed ({error}), and these could not be put back: {', '.join(lost)}; {where}"
            ) from error
        raise
    with contextlib.suppress(OSError):  # it is written: what is left over is no fault of the edit
        clean_up(root, record.entries)
    if journal is not None:
        journal.forget(record)


def _stage(root: Confined, planned: Sequence[_Planned], record: Record) -> None:
    """Write all new bytes beside their targets, onto the disk."""
    for missing in record.folders:
        with _named(missing):
            root.make_folder(missing)
    for plan in planned:
        if plan.change.data is not None:
            with _named(plan.change.path), root.folder_of(plan.entry.real) as (folder, _):
                write_new(folder, plan.entry.staged, plan.change.data, plan.like)
    for real in {plan.entry.real.rpartition("/")[0]: plan.entry.real for plan in planned}.values():
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            root.sync_folder_of(real)
