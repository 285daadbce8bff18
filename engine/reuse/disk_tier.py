"""Disk tier of the span store: files of entries, written in the background.

    magic, version, length of the header, length of the payload | fingerprint | the fields of `SpanHeader` | token ids
    | digest of all after the header | digest of the header | zeros up to a multiple of `ALIGNMENT` | payload

A digest is an HMAC with the folder's key, so a process without the key cannot write KV that is accepted.
All numbers are little-endian. The payload begins at a multiple of a memory page, so that a file can be mapped.
"""

from __future__ import annotations

import errno
import hmac
import logging
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from hmac import compare_digest
from pathlib import Path
from threading import Condition, Thread
from typing import Protocol

from kernels.atomic_file import PARTIAL, replace_file


@dataclass(frozen=True, slots=True)
class SpanHeader:
    """The identity of an entry: all that its KV depends on, besides the model's fingerprint.

    root: the digest of the root, from which no tenant's salt can be read. record, start: the prompt that it was
    computed in, and its position there; with them, no two entries are equal. dtype: torch's name of it, without
    `torch.`. num_layers, num_kv_heads, head_dim: the KV is [2 (keys before RoPE, values), num_layers, num_tokens,
    num_kv_heads, head_dim]. token_ids: as little-endian uint32.
    """

    root: bytes
    record: int
    start: int
    generation: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    token_ids: bytes
    num_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the entry."""
        return len(self.token_ids) // 4


class KVTier(Protocol):
    """Keeps entries' KV for a while, up to `capacity_bytes`. None of its methods raises.

    It may forget an entry at any time. `get` and `put` are called from different threads.
    """

    @property
    def capacity_bytes(self) -> int:
        """The most bytes that it keeps."""

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        """Keep an entry's KV, the bytes of its tensor; return whether that succeeded."""

    def get(self, header: SpanHeader) -> memoryview | None:
        """Return the KV of the entry with exactly this header; None if it is missing or damaged."""

    def headers(self) -> Iterable[SpanHeader]:
        """Return the headers of this model's entries, the least recently used first."""


MAGIC = b"HUNKSPAN"

VERSION = 2

ALIGNMENT = 4096

DIGEST_BYTES = 32
"""SHA-256, for which processors have an instruction: 1.8 GB/s, blake2b 0.6."""

_PREAMBLE = struct.Struct("<8sIIQ")
_FIELDS = struct.Struct("<32s32sQQIIIII16s")


class NotThisSpan(Exception):
    """The bytes are damaged, or those of another model, entry or version of this format; the message says which."""


def encode_head(header: SpanHeader, fingerprint: bytes, payload: memoryview, key: bytes) -> bytes:
    """Return the bytes before the payload. fingerprint: of the model."""
    assert len(payload) == header.num_bytes, "the payload is not the header's"
    described = describe(header, fingerprint)
    padding = bytes(-(len(described) + 2 * DIGEST_BYTES) % ALIGNMENT)
    described += _compute_digest(key, padding, payload)
    return described + _compute_digest(key, described) + padding


def describe(header: SpanHeader, fingerprint: bytes) -> bytes:
    """Return the header without its digests, which identifies the entry."""
    fields = _FIELDS.pack(
        _model(fingerprint),
        header.root,
        header.record,
        header.start,
        header.generation,
        header.num_layers,
        header.num_tokens,
        header.num_kv_heads,
        header.head_dim,
        header.dtype.encode("ascii"),
    )
    num_head = _PREAMBLE.size + len(fields) + len(header.token_ids) + 2 * DIGEST_BYTES
    return _PREAMBLE.pack(MAGIC, VERSION, num_head, header.num_bytes) + fields + header.token_ids


def file_bytes(header: SpanHeader) -> int:
    """Return the length of an entry's file."""
    num_head = _PREAMBLE.size + _FIELDS.size + len(header.token_ids) + 2 * DIGEST_BYTES
    return num_head + -num_head % ALIGNMENT + header.num_bytes


def payload_of(content: memoryview, header: SpanHeader, fingerprint: bytes, key: bytes) -> memoryview:
    """Return the payload of a whole file; raises NotThisSpan unless every byte is as written, and of this entry."""
    expected = describe(header, fingerprint)
    if len(content) != file_bytes(header) or content[: len(expected)] != expected:
        raise NotThisSpan("another entry, another model's or another version's, or cut off")
    num_head = len(expected) + 2 * DIGEST_BYTES
    _check_head(content, num_head, key)
    if not compare_digest(content[len(expected) : num_head - DIGEST_BYTES], _compute_digest(key, content[num_head:])):
        raise NotThisSpan("the checksum differs")
    return content[len(content) - header.num_bytes :]


def decode_header(head: memoryview, num_bytes: int, fingerprint: bytes, key: bytes) -> SpanHeader:
    """Return the header of a file of `num_bytes`, from its first bytes. Raises NotThisSpan; the payload is not read."""
    num_head, num_payload = _read_lengths(head, num_bytes)
    _check_head(head, num_head, key)
    model, root, record, start, generation, *shape, dtype = _FIELDS.unpack_from(head, _PREAMBLE.size)
    num_layers, num_tokens, num_kv_heads, head_dim = shape
    if model != _model(fingerprint):
        raise NotThisSpan("another model's")
    ids = head[_PREAMBLE.size + _FIELDS.size : num_head - 2 * DIGEST_BYTES]
    if len(ids) != 4 * num_tokens:
        raise NotThisSpan("the header's length does not fit its tokens")
    return SpanHeader(
        root,
        record,
        start,
        generation,
        num_layers,
        num_kv_heads,
        head_dim,
        dtype.rstrip(b"\0").decode("ascii"),
        bytes(ids),
        num_payload,
    )


def _read_lengths(head: memoryview, num_bytes: int) -> tuple[int, int]:
    """Return the lengths of header and payload; raises NotThisSpan unless they fit a file of `num_bytes`."""
    if len(head) < _PREAMBLE.size:
        raise NotThisSpan("too short")
    magic, version, num_head, num_payload = _PREAMBLE.unpack_from(head)
    if magic != MAGIC or version != VERSION:
        raise NotThisSpan("not this version of the format")
    fewest = _PREAMBLE.size + _FIELDS.size + 2 * DIGEST_BYTES
    if not fewest <= num_head <= len(head) or num_head + -num_head % ALIGNMENT + num_payload != num_bytes:
        raise NotThisSpan("the file is cut off, or its lengths are damaged")
    return num_head, num_payload


def _check_head(head: memoryview, num_head: int, key: bytes) -> None:
    if not compare_digest(
        head[num_head - DIGEST_BYTES : num_head], _compute_digest(key, head[: num_head - DIGEST_BYTES])
    ):
        raise NotThisSpan("the header's checksum differs")


def _model(fingerprint: bytes) -> bytes:
    return blake2b(fingerprint, digest_size=32).digest()


def _compute_digest(key: bytes, *parts: bytes | memoryview) -> bytes:
    digest = hmac.new(key, digestmod=sha256)
    for part in parts:
        digest.update(part)
    return digest.digest()


log = logging.getLogger(__name__)

SUFFIX = ".kv"

FILLED_TO = 0.9
"""The share of the capacity that stays in use when files are removed, so that not every write lists them all."""

ABANDONED_S = 3600.0
"""The age from which on an unfinished file is not being written any more."""

LONGEST_HEAD = 16 * ALIGNMENT
"""Bytes of a file that are read for its header."""


class DiskTier:
    """A `KVTier` in a folder; `fingerprint` is the model's (weights, tokenizer, RoPE, dtype), `key` the folder's own.

    A file gets its name when it is complete, and its modification time is that of its last use, so that it survives a
    crash and several processes can share the folder. Nothing is synchronised to the disk: a file that a loss of power
    leaves incomplete has a wrong checksum, and a damaged, foreign or missing file counts as an absent entry.
    """

    def __init__(self, folder: Path, capacity_bytes: int, fingerprint: bytes, key: bytes = b"") -> None:
        """The folder need not exist. Prompts can be read in it, so an existing one is closed to other users.

        A folder that belongs to another user is not used. Without a key, whoever can write into the folder can plant
        KV.
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
        """Write the entry's file, all or nothing, removing the least recently used ones if room is needed."""
        head = encode_head(header, self._fingerprint, payload, self._key)
        try:
            self._make_room(len(head) + len(payload))
            replace_file(self._path(header), [head, payload])
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

        It is read, not mapped: a mapped file that another process truncates would end this one.
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
        """Yield the headers of this model's entries; reads the beginning of every file."""
        with suppress(OSError):
            if not self._is_ours:
                return
            yield from self._read_headers(sorted(self._list_files()))

    def _read_headers(self, files: list[tuple[int, int, Path]]) -> Iterator[SpanHeader]:
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
        """Return the path of an entry; its name is a digest of the header."""
        name = blake2b(describe(header, self._fingerprint), digest_size=16).hexdigest()
        return self.folder / (name + SUFFIX)

    def _make_room(self, num_bytes: int) -> None:
        """Remove files until this one fits. Files of other processes are seen at every sixteenth of the capacity."""
        if num_bytes > self.capacity_bytes:
            raise OSError(f"an entry of {num_bytes} bytes is more than the {self.capacity_bytes} that it may take")
        self._room -= num_bytes
        if self._room >= 0:
            return
        self._make_folder()
        files = sorted(self._list_files())
        num_used = sum(size for _, size, _ in files)
        if num_used + num_bytes > self.capacity_bytes:
            for _, size, path in files:
                if num_used + num_bytes <= FILLED_TO * self.capacity_bytes:
                    break
                path.unlink(missing_ok=True)
                num_used -= size
        self._room = min(self.capacity_bytes - num_used - num_bytes, self.capacity_bytes // 16)

    def _list_files(self) -> list[tuple[int, int, Path]]:
        """Return each file's last use, size and path; removes files that were never finished."""
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


MOST_WAITING_BYTES = 1 << 28
"""The most bytes of evicted entries that wait to be written: about forty entries of a 1.5B model."""


class WriteBack:
    """A `KVTier` that writes to another one in the background. Waiting entries can be read from here.

    num_dropped: entries that were not taken because too much waited. num_faults: those that the tier did not take.
    """

    def __init__(self, tier: KVTier, most_waiting_bytes: int = MOST_WAITING_BYTES) -> None:
        self.tier = tier
        self.num_dropped = 0
        self.num_faults = 0
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: dict[SpanHeader, memoryview] = {}  # the first is being written
        self._num_waiting_bytes = 0
        self._changed = Condition()
        self._is_closed = False
        self._thread = Thread(target=self._write_all, name="span-write-back", daemon=True)
        self._thread.start()

    @property
    def capacity_bytes(self) -> int:
        """The capacity of the tier."""
        return self.tier.capacity_bytes

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        """Queue an entry for writing; False: it is dropped."""
        with self._changed:
            if header in self._waiting:
                return True
            if self._is_closed or self._num_waiting_bytes + len(payload) > self._most_waiting_bytes:
                self.num_dropped += 1
                return False
            self._waiting[header] = payload
            self._num_waiting_bytes += len(payload)
            self._changed.notify_all()
        return True

    def get(self, header: SpanHeader) -> memoryview | None:
        """Return a waiting entry, or the tier's."""
        with self._changed:
            waiting = self._waiting.get(header)
        return self.tier.get(header) if waiting is None else waiting

    def headers(self) -> Iterable[SpanHeader]:
        """Return those of the tier."""
        return self.tier.headers()

    def flush(self) -> None:
        """Wait until nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)

    def close(self) -> None:
        """Write what waits, and accept no more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def write(self, header: SpanHeader, payload: memoryview) -> bool:
        """Write an entry now; False: the tier has not taken it."""
        try:
            is_kept = self.tier.put(header, payload)
        except Exception:  # a tier must not raise; one that does must not end the thread either
            log.exception("an entry was not written")
            is_kept = False
        self.num_faults += not is_kept
        return is_kept

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                header, payload = next(iter(self._waiting.items()))
            self.write(header, payload)
            with self._changed:
                del self._waiting[header]
                self._num_waiting_bytes -= len(payload)
                self._changed.notify_all()
