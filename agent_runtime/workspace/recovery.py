"""Replaces single files, and finishes or undoes an interrupted write of several files.

A file's digest says whether it is old, new, or written by another process since. In the last case it counts as new if
our rename had been done (the staged file is gone), else as old.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agent_runtime.errors import BadFile, HunkError, Stale
from agent_runtime.files import read_descriptor
from agent_runtime.workspace.journal import (
    LOG,
    NUM_TRIES,
    Entry,
    Journal,
    Record,
    RecordCopy,
    find_copies,
    find_folders_with_copies,
    has_copy,
    lock_folders,
    remove_copies,
)
from agent_runtime.workspace.sandbox import ABSENT, ConfinedFolder, read_digest_at
from repo_cache.files import NEW_FILE_FLAGS, READ_FLAGS

SHA256_LEN = 64


def commit_entry(root: ConfinedFolder, entry: Entry) -> None:
    """Replace the old state by the new one and keep a backup; raises Stale if the state is neither, or OSError.

    The check and the rename use the same open folder. A write by another process between the two, microseconds, is
    lost, since a rename cannot check what it replaces. A file that appears where none was is never lost.
    """
    with root.open_parent(entry.real) as (folder, name):
        now = read_digest_at(folder, name)
        if now != entry.before:
            raise make_stale_error(entry.real, now)
        if not entry.staged:
            if entry.kept:
                os.rename(name, entry.kept, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
        elif entry.before == ABSENT:
            _rename_to_free(folder, entry.staged, name)
        else:
            if entry.kept:
                _back_up(folder, name, entry.kept)
            os.rename(entry.staged, name, src_dir_fd=folder, dst_dir_fd=folder)


def restore_entry(root: ConfinedFolder, entry: Entry) -> None:
    """Replace the new state by the old one; raises OSError, or Stale if a file appeared where one was deleted."""
    with root.open_parent(entry.real) as (folder, name):
        if entry.before == ABSENT:
            os.unlink(name, dir_fd=folder)
        elif entry.after == ABSENT:
            _rename_to_free(folder, entry.kept, name)
        else:
            os.rename(entry.kept, name, src_dir_fd=folder, dst_dir_fd=folder)


def create_file(folder: int, name: str, data: bytes, like: os.stat_result | None) -> None:
    """Create a file in an open folder and sync it; raises OSError.

    It takes the mode bits of `like`, without setuid and setgid, and its owner if this process may change owners.
    Without `like` it takes the mode that the umask leaves.
    """
    descriptor = os.open(name, NEW_FILE_FLAGS, 0o666 if like is None else 0o600, dir_fd=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if like is not None:
            if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(OSError):
                    os.fchown(descriptor, like.st_uid, like.st_gid)
            os.fchmod(descriptor, like.st_mode & 0o777)
        os.fsync(descriptor)


def make_stale_error(path: str, now: str) -> Stale:
    """Return the error for a path whose content is not the expected one; `now` is its digest."""
    current = now if len(now) == SHA256_LEN else ""
    return Stale(f"{path} changed while the edit was made; apply it again", current_sha256=current)


def _rename_to_free(folder: int, old_name: str, new_name: str) -> None:
    """Rename to a name that is not taken; raises Stale if it is, or OSError."""
    try:
        os.link(old_name, new_name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise make_stale_error(new_name, read_digest_at(folder, new_name)) from None
    except OSError:  # a file system without hard links
        if (now := read_digest_at(folder, new_name)) != ABSENT:
            raise make_stale_error(new_name, now) from None
        os.rename(old_name, new_name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    os.unlink(old_name, dir_fd=folder)


def _back_up(folder: int, name: str, kept: str) -> None:
    """Back up a file by a hard link, or a copy if the file system has none. Raises OSError."""
    try:
        os.link(name, kept, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:  # made before the write was interrupted
        return
    except OSError:
        with contextlib.suppress(FileNotFoundError):  # an unfinished copy
            os.unlink(kept, dir_fd=folder)
        descriptor = os.open(name, READ_FLAGS, dir_fd=folder)
        like = os.fstat(descriptor)
        create_file(folder, kept, read_descriptor(descriptor, name), like)


@dataclass(frozen=True, slots=True)
class _EntryState:
    """An entry, and the digests of its file, its staged file and its backup."""

    entry: Entry
    now: str
    staged: str
    kept: str

    @property
    def is_foreign(self) -> bool:
        """Whether another process has written the file since."""
        return self.now not in (self.entry.before, self.entry.after)

    @property
    def is_done(self) -> bool:
        """Whether the file is new, or was until another process wrote it."""
        if not self.is_foreign:
            return self.now == self.entry.after
        return self.staged == ABSENT if self.entry.staged else self.kept != ABSENT

    @property
    def can_finish(self) -> bool:
        """Whether the file is new, or can be made new."""
        return self.is_done or (not self.is_foreign and self.staged == self.entry.after)

    @property
    def can_undo(self) -> bool:
        """Whether the file is old, or can be made old."""
        return not self.is_done or (not self.is_foreign and (self.kept == ABSENT) == (self.entry.before == ABSENT))


class InterruptedAbove(Exception):
    """An interrupted write reaches `above` folders above the root, and cannot be recovered from this root."""

    def __init__(self, copy: RecordCopy) -> None:
        super().__init__(
            f"a write of several files was broken off in {copy.folder or 'the root'} and reaches above it; start Hunk "
            "with the root of that write, or a folder above it, and it is finished or undone"
        )
        self.above = copy.above


def recover(root: ConfinedFolder, journal: Journal) -> None:
    """Finish or undo all interrupted writes in the journal, which is locked."""
    for record in journal.read_records():
        try:
            with lock_folders(root.root, record.homes):
                if record.committing and not has_copy(root, record):  # recovered through another journal
                    said = ""
                else:
                    said = recover_record(root, record)
                    remove_copies(root, record)
            journal.remove(record)
        except (OSError, HunkError) as error:
            LOG.error("a write that was broken off is left for the next start: %s", error)
            continue
        if said:
            LOG.warning("%s", said)


@contextlib.contextmanager
def lock_targets(root: ConfinedFolder, targets: Callable[[], Mapping[str, str]]) -> Iterator[Collection[str]]:
    """Lock the folders of the targets and recover interrupted writes in them; yields all locked folders.

    `targets` returns the folder to lock for each real path; it is called again once they are locked. Raises what it
    raises, BadFile if folders keep changing, InterruptedAbove if a target belongs to an interrupted write that cannot
    be recovered from this root.
    """
    more: frozenset[str] = frozenset()
    for _ in range(NUM_TRIES):
        wanted = targets()
        with lock_folders(root.root, folders := {*wanted.values(), *more}):
            if targets() != wanted:
                continue
            try:
                missing = _recover_copies(root, folders, wanted)
            except OSError as error:
                raise BadFile(f"cannot look for writes that were broken off: {error.strerror or error}") from error
            if not missing:
                yield folders
                return
            more |= missing
    raise BadFile("the folders of the edit change all the time; nothing was changed")


def recover_below(root: ConfinedFolder, *, above: int = 0) -> None:
    """Finish or undo all interrupted writes whose record copies are below the root, whatever journal they used.

    With `above`, only those with a copy in the root itself that reach so many folders above it.
    """
    folders: Iterable[str] = find_folders_with_copies(root)
    if above:
        top = ConfinedFolder(root.root.parents[above - 1])
        root, folders = top, [root.root.relative_to(top.root).as_posix()]
    for folder in folders:
        try:
            with lock_targets(root, partial(dict, {folder: folder})):
                pass
        except (OSError, HunkError, InterruptedAbove) as error:
            LOG.error("a write that was broken off is left: %s", error)


def _recover_copies(root: ConfinedFolder, folders: Collection[str], targets: Collection[str]) -> frozenset[str]:
    """Recover each write with a record copy in these folders, which are locked; returns further folders to lock.

    Raises InterruptedAbove, or OSError.
    """
    for copy in find_copies(root, folders):
        if copy.above:
            here = {f"{copy.folder}/{entry.real}".lstrip("/") for entry in copy.record.entries if "/" not in entry.real}
            if not here.isdisjoint(targets) or copy.folder in targets:
                raise InterruptedAbove(copy)
            continue
        record = copy.record
        if missing := record.homes.difference(folders):
            return missing
        try:
            agreeing = {each.folder for each in find_copies(root, record.homes) if each.record == record}
            said = recover_record(root, record, may_rename=agreeing == record.homes)
        except (OSError, HunkError) as error:
            LOG.error("a write that was broken off is left for the next write: %s", error)
            continue
        if said:
            remove_copies(root, record)
            LOG.warning("%s", said)
    return frozenset()


def recover_record(root: ConfinedFolder, record: Record, *, may_rename: bool = True) -> str:
    """Finish or undo one write; returns what was done, as a message. Raises OSError, or Stale if a file changes now.

    Without `may_rename` only leftovers are removed: if no file was renamed yet, or all were. Otherwise returns "".
    """
    seen = [_inspect(root, entry) for entry in record.entries]
    files = f"a write of {len(seen)} file{'s' if len(seen) > 1 else ''} that was broken off"
    if not record.committing or not any(each.is_done for each in seen):
        _remove_traces(root, record, record.entries)
        return f"what was left of {files} is removed"
    if not may_rename and not all(each.is_done for each in seen):
        LOG.error("%s is left as it is: its record is not beside all of its files", files)
        return ""
    if all(each.can_finish for each in seen):
        for each in seen:
            if not each.is_done:
                commit_entry(root, each.entry)
        clean_up(root, record.entries)
        return f"{files} is finished"
    if all(each.can_undo for each in seen):
        for each in reversed(seen):
            if each.is_done and not each.is_foreign:
                restore_entry(root, each.entry)
        _remove_traces(root, record, record.entries)
        return f"{files} is undone"
    new = ", ".join(each.entry.real for each in seen if each.is_done)
    old = ", ".join(each.entry.real for each in seen if not each.is_done)
    return (
        f"{files} is left as it is, since others have changed its files: {new} had been written, {old} had not; "
        f"the bytes before and after lie beside them as .{record.id}-*.hunk"
    )


def undo(root: ConfinedFolder, record: Record) -> list[str]:
    """Restore the files that were written; returns those that could not be, whose backups are kept."""
    lost = []
    for entry in reversed(record.entries if record.committing else ()):
        try:
            each = _inspect(root, entry)
            if each.is_done and not each.is_foreign:
                restore_entry(root, entry)
        except (OSError, HunkError):
            lost.append(entry)
    with contextlib.suppress(OSError):
        _remove_traces(root, record, [entry for entry in record.entries if entry not in lost])
    return [entry.real for entry in lost]


def clean_up(root: ConfinedFolder, entries: Sequence[Entry]) -> None:
    """Remove staged files and backups, and sync the folders; raises OSError."""
    for entry in entries:
        with contextlib.suppress(FileNotFoundError), root.open_parent(entry.real) as (folder, _):
            for name in filter(None, (entry.staged, entry.kept)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
    for changed in {entry.real.rpartition("/")[0] for entry in entries}:
        with contextlib.suppress(OSError):  # some file systems cannot sync a folder
            root.sync_folder(changed)


def _remove_traces(root: ConfinedFolder, record: Record, entries: Sequence[Entry]) -> None:
    clean_up(root, entries)
    for folder in reversed(record.folders):
        with contextlib.suppress(OSError):  # it was not made yet, or is in use
            root.remove_folder(folder)


def _inspect(root: ConfinedFolder, entry: Entry) -> _EntryState:
    folder = entry.real.rpartition("/")[0]
    beside = [f"{folder}/{name}".lstrip("/") if name else "" for name in (entry.staged, entry.kept)]
    staged, kept = (root.read_digest(real) if real else ABSENT for real in beside)
    return _EntryState(entry, root.read_digest(entry.real), staged, kept)
