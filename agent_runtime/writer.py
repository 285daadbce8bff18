"""Writes merged files in place of the old ones: wholly or not at all, one file or several.

Several files are checked before any is touched, then written one after the other; an error in the middle undoes what
was written. A process that is killed in between leaves some files new and some old: there is no journal yet.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from agent_runtime.errors import BadFile, Stale


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of one path: these bytes, or no file where `data` is None.

    `expected_sha256` is what stands there now, "" for nothing. `mode_of` is the file whose mode bits a new one takes.
    """

    path: Path
    data: bytes | None
    expected_sha256: str
    mode_of: Path | None = None


@dataclass(slots=True)
class _Planned:
    """One change with its links followed, the bytes and mode that stood there, and the new bytes beside it."""

    change: Change
    target: Path
    old: bytes | None
    mode: int | None
    staged: Path | None = None


def replace_file(path: Path, data: bytes, *, expected_sha256: str) -> None:
    """Put `data` in place of the file's bytes, if these still have the expected hash.

    A temporary file beside it is written, synced and renamed over it, so a reader sees the old bytes or the new ones.
    Mode bits stay; a symbolic link stays one, and its target is replaced. Raises Stale (with the current hash) or
    BadFile.
    """
    write_all([Change(path, data, expected_sha256)])


def write_all(changes: Sequence[Change]) -> None:
    """Make all changes or none; raises Stale (with the current hash) or BadFile.

    New bytes are written and synced beside their targets before the first one is renamed, so that a full disk changes
    nothing. Folders are made as they are needed, and stay where a deletion empties them.
    """
    folders: list[Path] = []
    planned: list[_Planned] = []
    try:
        for change in changes:
            with _named(change.path):
                planned.append(_plan(change))
        _check_distinct(planned)
        for plan in planned:
            with _named(plan.change.path):
                _stage(plan, folders)
        _commit(planned)
    except BaseException:
        _clean_up(planned, folders)
        raise
    for folder in {plan.target.parent for plan in planned}:
        with contextlib.suppress(OSError):  # the renames are done; syncing only guards them against a power cut
            _sync_folder(folder)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}; nothing was changed") from error


def _plan(change: Change) -> _Planned:
    """Look at what stands there; raises Stale where it is not what was expected."""
    target = change.path if change.data is None else change.path.resolve()
    if not change.expected_sha256:
        if target.exists() or target.is_symlink():
            now = sha256(target.read_bytes()).hexdigest() if target.is_file() else ""
            raise Stale(f"{change.path} is there by now; apply the edit again", current_sha256=now)
        mode = None if change.mode_of is None else change.mode_of.stat().st_mode & 0o7777
        return _Planned(change, target, None, mode)
    old = target.read_bytes()
    current = sha256(old).hexdigest()
    if current != change.expected_sha256:
        raise Stale(f"{change.path} changed while the edit was made; apply it again", current_sha256=current)
    if not os.access(target if change.data is not None else target.parent, os.W_OK):
        raise PermissionError(13, "it is write-protected")
    return _Planned(change, target, old, target.stat().st_mode & 0o7777)


def _check_distinct(planned: Sequence[_Planned]) -> None:
    """Two names of one file, such as a link and its target, cannot both be written."""
    seen: dict[Path, Path] = {}
    for plan in planned:
        file = plan.target.resolve()
        if file in seen:
            raise BadFile(f"{seen[file]} and {plan.change.path} are the same file; nothing was changed")
        seen[file] = plan.change.path


def _stage(plan: _Planned, folders: list[Path]) -> None:
    if plan.change.data is None:
        return
    _make_folders(plan.target.parent, folders)
    temporary = plan.target.with_name(f".{secrets.token_hex(8)}.hunk")
    # A file without an example to follow gets what the umask leaves, as any new file does.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if plan.mode is None else 0o600)
    plan.staged = temporary
    with os.fdopen(descriptor, "wb") as file:
        file.write(plan.change.data)
        file.flush()
        if plan.mode is not None:
            os.fchmod(file.fileno(), plan.mode)
        os.fsync(file.fileno())


def _commit(planned: Sequence[_Planned]) -> None:
    done: list[_Planned] = []
    try:
        for plan in planned:
            with _named(plan.change.path):
                if plan.staged is None:
                    plan.target.unlink()
                else:
                    plan.staged.replace(plan.target)
            done.append(plan)
    except BaseException as error:
        lost = [str(plan.change.path) for plan in reversed(done) if not _undone(plan)]
        if lost:
            raise BadFile(f"writing failed ({error}), and these could not be put back: {', '.join(lost)}") from error
        raise


def _undone(plan: _Planned) -> bool:
    try:
        if plan.old is None:
            plan.target.unlink(missing_ok=True)
            return True
        _stage(back := _Planned(Change(plan.change.path, plan.old, ""), plan.target, None, plan.mode), [])
        assert back.staged is not None
        back.staged.replace(plan.target)
    except OSError:
        return False
    return True


def _make_folders(folder: Path, made: list[Path]) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir()
        made.append(one)


def _clean_up(planned: Sequence[_Planned], folders: Sequence[Path]) -> None:
    for plan in planned:
        if plan.staged is not None:
            plan.staged.unlink(missing_ok=True)
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # somebody else uses it by now
            folder.rmdir()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
