"""The file that a pull writes: appended to by whichever source has the next bytes, hashed on the way."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType

from agent_runtime.models.progress import Progress
from agent_runtime.models.store import CHUNK_BYTES


class Partial:
    """The first `size` bytes of a file of `total_bytes`; a context manager that closes and keeps the file.

    Unbuffered, so that what was received is in the file if this process is killed the next moment.
    """

    def __init__(self, path: Path, total_bytes: int, progress: Progress) -> None:
        """Opens or makes `path` and hashes what it holds; one that is longer than `total_bytes` is begun again."""
        self.path = path
        self.total_bytes = total_bytes
        self.progress = progress
        self._digest = hashlib.sha256()
        self._file = path.open("a+b", buffering=0)
        self.size = self._file.seek(0, os.SEEK_END)
        if self.size > total_bytes:
            self._file.truncate(0)
            self.size = 0
        self._hash_prefix()

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    @property
    def missing_bytes(self) -> int:
        """How much of the file is still to come."""
        return self.total_bytes - self.size

    @property
    def sha256(self) -> str:
        """Of the bytes so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Appends. Raises OSError as the file system does."""
        assert len(chunk) <= self.missing_bytes, "a source must end where the file ends"
        view = memoryview(chunk)
        while view:
            num_written = self._file.write(view)
            self._digest.update(view[:num_written])
            self.size += num_written
            view = view[num_written:]
        self.progress.at(self.size)

    def move_to(self, target: Path) -> None:
        """Makes the complete file appear at `target` at once, and last through a power failure."""
        assert not self.missing_bytes
        os.fsync(self._file.fileno())
        self.path.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _hash_prefix(self) -> None:
        if not self.size:
            return
        self._file.seek(0)
        with self.progress.task("checking what is here already", self.size):
            while chunk := self._file.read(CHUNK_BYTES):
                self._digest.update(chunk)
                self.progress.at(self._file.tell())
