"""Writes a merged file in place of the old one: wholly or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from hashlib import sha256
from pathlib import Path

from agent_runtime.errors import BadFile, Stale


def replace_file(path: Path, data: bytes, *, expected_sha256: str) -> None:
    """Put `data` in place of the file's bytes, if these still have the expected hash.

    A temporary file beside it is written, synced and renamed over it, so a reader sees the old bytes or the new ones.
    Mode bits stay; a symbolic link stays one, and its target is replaced. Raises Stale (with the current hash) or
    BadFile.
    """
    target = path.resolve()
    try:
        current = sha256(target.read_bytes()).hexdigest()
        if current != expected_sha256:
            raise Stale(f"{path} changed while the edit was made; apply it again", current_sha256=current)
        _replace(target, data)
    except OSError as error:
        raise BadFile(f"cannot write {path}: {error.strerror or error}; nothing was changed") from error


def _replace(target: Path, data: bytes) -> None:
    mode = target.stat().st_mode & 0o7777
    if not os.access(target, os.W_OK):
        raise PermissionError(13, "it is write-protected")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".hunk", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the rename is done; syncing the folder only guards it against a power cut
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
