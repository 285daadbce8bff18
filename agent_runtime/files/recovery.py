"""Finishes or undoes a write of several files that was broken off, and touches nothing that others changed since.

Each file is told by its mark: it is as it was before, or as it should be after, or somebody else has written it since.
The last is on the side of the new files where our rename had been done (the staged file is gone), else of the old ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from agent_runtime.errors import HunkError
from agent_runtime.files.confined import NOTHING, Confined
from agent_runtime.files.journal import LOG, Entry, Journal, Record
from agent_runtime.files.renaming import do, put_back


@dataclass(frozen=True, slots=True)
class _Seen:
    """One entry as it is found: the mark of the file, of the staged one and of the old one that is kept."""

    entry: Entry
    now: str
    staged: str
    kept: str

    @property
    def is_others(self) -> bool:
        """Whether somebody else has written the file since."""
        return self.now not in (self.entry.before, self.entry.after)

    @property
    def done(self) -> bool:
        """Whether the new state stands there, or stood until somebody else wrote it."""
        if not self.is_others:
            return self.now == self.entry.after
        return self.staged == NOTHING if self.entry.staged else self.kept != NOTHING

    @property
    def can_be_finished(self) -> bool:
        """Whether it is new, or can be made so."""
        return self.done or (not self.is_others and self.staged == self.entry.after)

    @property
    def can_be_undone(self) -> bool:
        """Whether it is old, or can be made so."""
        return not self.done or (not self.is_others and (self.kept == NOTHING) == (self.entry.before == NOTHING))


def recover(root: Confined, journal: Journal) -> None:
    """See to all writes that were broken off; the journal's lock is held."""
    for record in journal.left():
        try:
            said = settle(root, record)
        except (OSError, HunkError) as error:
            LOG.error("a write that was broken off is left for the next start: %s", error)
            continue
        LOG.warning("%s", said)
        journal.forget(record)


def settle(root: Confined, record: Record) -> str:
    """Finish one write or undo it, and say which; raises OSError, or Stale where a file is changed just now."""
    seen = [_look(root, entry) for entry in record.entries]
    files = f"a write of {len(seen)} file{'s' if len(seen) > 1 else ''} that was broken off"
    if not record.committing or not any(each.done for each in seen):
        _remove_traces(root, record, record.entries)
        return f"what was left of {files} is removed"
    if all(each.can_be_finished for each in seen):
        for each in seen:
            if not each.done:
                do(root, each.entry)
        clean_up(root, record.entries)
        return f"{files} is finished"
    if all(each.can_be_undone for each in seen):
        for each in reversed(seen):
            if each.done and not each.is_others:
                put_back(root, each.entry)
        _remove_traces(root, record, record.entries)
        return f"{files} is undone"
    new = ", ".join(each.entry.real for each in seen if each.done)
    old = ", ".join(each.entry.real for each in seen if not each.done)
    return (
        f"{files} is left as it is, since others have changed its files: {new} had been written, {old} had not; "
        f"the bytes before and after lie beside them as .{record.id}-*.hunk"
    )


def undo(root: Confined, record: Record) -> list[str]:
    """Put back what is done, and say which files cannot be; what is kept of those stays."""
    lost = []
    for entry in reversed(record.entries if record.committing else ()):
        try:
            each = _look(root, entry)
            if each.done and not each.is_others:
                put_back(root, entry)
        except (OSError, HunkError):
            lost.append(entry)
    with contextlib.suppress(OSError):
        _remove_traces(root, record, [entry for entry in record.entries if entry not in lost])
    return [entry.real for entry in lost]


def clean_up(root: Confined, entries: Sequence[Entry]) -> None:
    """Remove what was staged and what was kept, and have the names last through a power cut; raises OSError."""
    for entry in entries:
        with contextlib.suppress(FileNotFoundError), root.folder_of(entry.real) as (folder, _):
            for name in filter(None, (entry.staged, entry.kept)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
    for real in {entry.real.rpartition("/")[0]: entry.real for entry in entries}.values():
        with contextlib.suppress(OSError):  # all is done; some file systems cannot sync a folder
            root.sync_folder_of(real)


def _remove_traces(root: Confined, record: Record, entries: Sequence[Entry]) -> None:
    clean_up(root, entries)
    for folder in reversed(record.folders):
        with contextlib.suppress(OSError):  # it was not made yet, or somebody else uses it by now
            root.remove_folder(folder)


def _look(root: Confined, entry: Entry) -> _Seen:
    folder = entry.real.rpartition("/")[0]
    beside = [f"{folder}/{name}".lstrip("/") if name else "" for name in (entry.staged, entry.kept)]
    staged, kept = (root.mark(real) if real else NOTHING for real in beside)
    return _Seen(entry, root.mark(entry.real), staged, kept)
