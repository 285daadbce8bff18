"""Replaces a file atomically; for the caches of kernels and of the engine."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

PARTIAL = ".partial"
"""End of a temporary file's name; a killed process leaves one."""


def replace_file(path: Path, parts: Iterable[bytes | memoryview], *, sync: bool = False) -> None:
    """Write a temporary file in the same folder and rename it, so that a reader sees the old bytes or the new ones.

    With `sync` the new bytes are on the disk before the rename. Raises OSError, and then leaves no temporary file.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=PARTIAL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
