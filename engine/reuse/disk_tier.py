"""Entries in files, one a file, in one folder that engines of any models may share."""

from __future__ import annotations

import errno
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from engine.reuse.store.span_file import (
    ALIGNMENT,
    NotThisSpan,
    decode_header,
    describe,
    encode_head,
    file_bytes,
    payload_of,
)
from engine.reuse.store.tier import SpanHeader

log = logging.getLogger(__name__)

SUFFIX = ".kv"
PARTIAL = ".partial"

FILLED_TO = 0.9
"""Share of the capacity that is left in use when files are removed, so that not every write looks at them all."""

ABANDONED_S = 3600.0
"""Age of a file that was begun and not finished, from which on nobody is writing it."""

LONGEST_HEAD = 16 * ALIGNMENT
"""Bytes of a file that are read for its header."""


class DiskTier:
    """A `KVTier` in a folder; `fingerprint` is the model's (weights, tokenizer, RoPE, dtype), `key` the folder's own.

    A file gets its name when it is whole, and its time of change says when it was last used, so that it survives a
    crash and several processes can share the folder. Nothing is synchronised to the disk: what a loss of power leaves
    half-written has a wrong checksum, and a damaged, foreign or vanished file is an entry that is not there.
    """

    def __init__(self, folder: Path, capacity_bytes: int, fingerprint: bytes, key: bytes = b"") -> None:
        """The folder need not exist. Prompts can be read in it, so one that is there is closed to other users.

        One that belongs to another user is not used.
        Without a key, who can write into the folder can plant KV.
        """
        if capacity_bytes < 1:
            raise ValueError(f"capacity_bytes is {capacity_bytes}; it must be at least 1")
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self._fingerprint = fingerprint
        self._key = key
        self._is_failing = False
        self._is_ours = False  # what lies in a folder of somebody else is not read
        with suppress(OSError):  # the first entry that is put says why
            self._make_folder()
        self._room = 0  # bytes that can be written before the files are looked at

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        """Write the entry's file, all or nothing, and remove the least recently used ones where the room is needed."""
        head = encode_head(header, self._fingerprint, payload, self._key)
        try:
            self._make_room(len(head) + len(payload))
            self._write(self._path(header), head, payload)
        except OSError as error:
            if not self._is_failing:  # said once, not with every entry
                log.warning("KV cannot be kept in %s: %s", self.folder, error)
            self._is_failing = True
            self._room = 0  # look again
            return False
        self._is_failing = False
        return True

    def get(self, header: SpanHeader) -> memoryview | None:
        """Read an entry's file and check all of it.

        It is read, not mapped: a mapped file that another process cuts short ends this one.
        """
        if not self._is_ours:
            return None
        path = self._path(header)
        try:
            payload = payload_of(_read(path, file_bytes(header)), header, self._fingerprint, self._key)
        except FileNotFoundError:
            return None
        except (OSError, NotThisSpan) as error:
            log.warning("the stored KV in %s is not used: %s", path, error)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def headers(self) -> Iterator[SpanHeader]:
        """What the folder has of this model; reads the beginning of every file."""
        with suppress(OSError):
            if not self._is_ours:
                return
            yield from self._headers(sorted(self._files()))

    def _headers(self, files: list[tuple[int, int, Path]]) -> Iterator[SpanHeader]:
        for _, num_bytes, path in files:
            with suppress(OSError, NotThisSpan, UnicodeDecodeError):
                with path.open("rb", buffering=0) as file:
                    head = memoryview(file.read(min(num_bytes, LONGEST_HEAD)))
                header = decode_header(head, num_bytes, self._fingerprint, self._key)
                if self._path(header) == path:
                    yield header

    def _make_folder(self) -> None:
        self._is_ours = False
        _make_private(self.folder)
        self._is_ours = True

    def _path(self, header: SpanHeader) -> Path:
        """Where an entry is; its name is a digest of the header."""
        name = blake2b(describe(header, self._fingerprint), digest_size=16).hexdigest()
        return self.folder / (name + SUFFIX)

    def _write(self, path: Path, *parts: bytes | memoryview) -> None:
        number, name = tempfile.mkstemp(dir=self.folder, suffix=PARTIAL)
        try:
            with os.fdopen(number, "wb") as file:
                file.writelines(parts)
            Path(name).replace(path)
        except OSError:
            with suppress(OSError):
                Path(name).unlink()
            raise

    def _make_room(self, num_bytes: int) -> None:
        """Remove files until this one fits. What other processes write is seen at every sixteenth of the capacity."""
        if num_bytes > self.capacity_bytes:
            raise OSError(f"an entry of {num_bytes} bytes is more than the {self.capacity_bytes} that it may take")
        self._room -= num_bytes
        if self._room >= 0:
            return
        self._make_folder()
        files = sorted(self._files())
        num_used = sum(size for _, size, _ in files)
        if num_used + num_bytes > self.capacity_bytes:
            for _, size, path in files:
                if num_used + num_bytes <= FILLED_TO * self.capacity_bytes:
                    break
                path.unlink(missing_ok=True)
                num_used -= size
        self._room = min(self.capacity_bytes - num_used - num_bytes, self.capacity_bytes // 16)

    def _files(self) -> list[tuple[int, int, Path]]:
        """When each file was last used, its size, and where it is; removes what was begun and never finished."""
        files = []
        with suppress(FileNotFoundError), os.scandir(self.folder) as found:
            for each in found:
                with suppress(FileNotFoundError):  # another process has removed it meanwhile
                    if each.name.endswith(SUFFIX) and each.is_file(follow_symlinks=False):  # a pipe would be waited for
                        files.append((each.stat().st_mtime_ns, each.stat().st_size, Path(each.path)))
                    elif each.name.endswith(PARTIAL) and each.stat().st_mtime < time.time() - ABANDONED_S:
                        Path(each.path).unlink()
        return files


def _read(path: Path, num_bytes: int) -> memoryview:
    """The content of a file that must be so long; memory is taken for that much, however long it is."""
    content = memoryview(bytearray(num_bytes))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size != num_bytes:
            raise NotThisSpan("cut off, or longer than it was")
        num_read = 0
        while num_read < num_bytes:
            count = file.readinto(content[num_read:])
            if not count:
                raise NotThisSpan("cut off")
            num_read += count
    return content


def _make_private(folder: Path) -> None:
    """Make a folder that is 0700, or close this user's own to others; raises OSError, for somebody else's too."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", str(folder))
    if state.st_mode & 0o077:
        folder.chmod(0o700)
