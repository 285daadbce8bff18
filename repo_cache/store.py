"""Stores token ids by content hash, and the content hash of each file."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repo_cache.database import Database
from repo_cache.files import FileStat

MAX_ROOTS = 64
"""The most folders whose files are kept; the least recently used are dropped."""

CHECKSUM_BYTES = 8
COLUMNS = "path, size, mtime_ns, ctime_ns, inode, content_hash, reason, checksum"
SELECT = f"SELECT {COLUMNS} FROM files WHERE root = ?"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file at its last read: its stat, and the SHA-256 of its bytes or the reason why it is skipped."""

    stat: FileStat
    content_hash: str
    reason: str = ""


def parse_records(root: bytes, rows: Sequence[Sequence[Any]]) -> dict[str, FileRecord]:
    """Parse the rows of `SELECT` by path; rows with a wrong checksum are left out."""
    return {path: FileRecord(FileStat(*row[:4]), *row[4:6]) for path, *row in rows if _is_intact(root, path, row)}


def write_records(connection: sqlite3.Connection, root: bytes, records: Mapping[str, FileRecord | None]) -> None:
    """Insert records, delete those of None, and drop the least recently used roots."""
    gone = [(root, path) for path, record in records.items() if record is None]
    kept = [_make_record_row(root, path, record) for path, record in records.items() if record is not None]
    connection.execute("INSERT OR REPLACE INTO roots VALUES (?, ?)", (root, int(time.time())))
    connection.executemany("DELETE FROM files WHERE root = ? AND path = ?", gone)
    connection.executemany(f"INSERT OR REPLACE INTO files (root, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kept)
    oldest = "SELECT root FROM roots ORDER BY used DESC LIMIT -1 OFFSET ?"
    old = connection.execute(oldest, (MAX_ROOTS,)).fetchall()
    connection.executemany("DELETE FROM files WHERE root = ?", old)
    connection.executemany("DELETE FROM roots WHERE root = ?", old)


def _make_record_row(root: bytes, path: str, record: FileRecord) -> tuple[str | bytes | int, ...]:
    stat = record.stat
    row = (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, record.content_hash, record.reason)
    return root, path, *row, _compute_record_checksum(root, path, row)


def _compute_record_checksum(root: bytes, path: str, row: Sequence[str | int | bytes]) -> bytes:
    return blake2b(repr((root, path, *row)).encode(errors="surrogatepass"), digest_size=CHECKSUM_BYTES).digest()


def _is_intact(root: bytes, path: str, row: Sequence[str | int | bytes]) -> bool:
    return _compute_record_checksum(root, path, row[:-1]) == row[-1]


logger = logging.getLogger(__name__)

SCHEMA = 1
"""Part of the file's name, so that programs of two versions use two files."""

DEFAULT_STORE_BYTES = 2 << 30
TOUCH_SECONDS = 86_400
"""The last use of a value is recorded to a day, so that most reads write nothing."""

BATCH_ROWS = 400
BATCH_BYTES = 4 << 20
"""The size of one transaction: others wait at most for one (some 50 ms)."""

EVICT_SHARE = 32
"""The limit divided by the number of bytes written between two checks of the total size."""

RECORD_BYTES = 200
"""The approximate size of a file's record."""

KNOWN = "SELECT 1 FROM entries JOIN contents USING (value_id) WHERE key = ?"


class TokenStore:
    """A cache in `folder` that several threads and processes may use at once.

    It never returns wrong data and never fails. Every value and record has a checksum that includes its key: a damaged
    one counts as missing, a damaged file is recreated, and a locked file is a miss. If the folder cannot be written or
    the disk is full, it continues without the store, and `notice` is called once.

    Ids are compressed (zlib, level 1): a third of the bytes for 4 % of the time of encoding.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: bytes,
        *,
        max_bytes: int = DEFAULT_STORE_BYTES,
        notice: Callable[[str], None] = logger.warning,
    ) -> None:
        self.path = folder / f"tokens-{SCHEMA}.sqlite3"
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        self._touched: set[bytes] = set()
        self._num_new_bytes = 0
        self._database = Database(self.path, notice)

    @property
    def is_usable(self) -> bool:
        """Whether the file can still be used."""
        return self._database.is_usable

    def read(self, hashes: Iterable[str]) -> dict[str, NDArray[np.uint32]]:
        """Return the token ids of the known contents (SHA-256, hex)."""
        keys = {self._make_key(content_hash): content_hash for content_hash in hashes}
        found: dict[str, NDArray[np.uint32]] = {}
        remaining = iter(keys)
        while batch := list(islice(remaining, BATCH_ROWS)):
            for key, value, checksum in self._query_rows(batch):
                ids = _unpack(key, value, checksum)
                if ids is None:
                    self._database.submit(lambda key=key: self._forget(key), 0)  # type: ignore[misc]
                else:
                    found[keys[key]] = ids
        return found

    def write(self, contents: Mapping[str, NDArray[np.uint32]]) -> None:
        """Store the token ids of these contents in the background."""
        size = sum(ids.nbytes for ids in contents.values())
        self._database.submit(lambda: self._write(contents), size)

    def read_records(self, root: Path | str) -> dict[str, FileRecord]:
        """Return the records of the files below a root, by path."""
        return parse_records(os.fsencode(root), self._database.query(SELECT, (os.fsencode(root),)))

    def write_records(self, root: Path | str, records: Mapping[str, FileRecord | None]) -> None:
        """Store records of files below a root and delete those of None, in the background."""

        def job() -> None:
            self._database.run_transaction(lambda connection: write_records(connection, os.fsencode(root), records))

        self._database.submit(job, RECORD_BYTES * len(records))

    def flush(self) -> None:
        """Wait until everything is written."""
        self._database.flush()

    def close(self) -> None:
        """Finish all writes and close the file. A second call does nothing."""
        self._database.submit(self._touch, 0)
        self._database.submit(self._evict, 0)
        self._database.close()

    def _query_rows(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes]]:
        now = int(time.time())
        marks = ",".join("?" * len(keys))
        query = (
            "SELECT key, value, checksum, used FROM entries JOIN contents USING (value_id) "
            f"WHERE key IN ({marks})"  # only question marks are inserted
        )
        rows = self._database.query(query, keys)
        for key, _, _, used in rows:
            if not isinstance(used, int) or abs(now - used) > TOUCH_SECONDS:
                self._touched.add(key)
        return [(key, value, checksum) for key, value, checksum, _ in rows if key in keys]

    def _write(self, contents: Mapping[str, NDArray[np.uint32]]) -> None:
        packed = []
        size = 0
        for content_hash, ids in contents.items():
            key, value = self._make_key(content_hash), zlib.compress(_to_little_endian(ids), 1)
            packed.append((key, value, _compute_checksum(key, value)))
            size += len(value)
            if size > BATCH_BYTES or len(packed) >= BATCH_ROWS:
                self._write_packed(packed)
                packed, size = [], 0
        if packed:
            self._write_packed(packed)
        self._num_new_bytes += sum(ids.nbytes for ids in contents.values())
        if self._num_new_bytes > self._max_bytes // EVICT_SHARE:
            self._num_new_bytes = 0
            self._evict()

    def _write_packed(self, packed: list[tuple[bytes, bytes, bytes]]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            now = int(time.time())
            for key, value, checksum in packed:
                if connection.execute(KNOWN, (key,)).fetchone():
                    continue
                values = (value, checksum)
                row = connection.execute("INSERT INTO contents (value, checksum) VALUES (?, ?)", values).lastrowid
                connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, row, len(value), now))

        self._database.run_transaction(write)

    def _forget(self, key: bytes) -> None:
        """Delete a damaged value, so that a good one can replace it."""

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM contents WHERE value_id IN (SELECT value_id FROM entries WHERE key = ?)", (key,)
            )
            connection.execute("DELETE FROM entries WHERE key = ?", (key,))

        self._database.run_transaction(delete)

    def _evict(self) -> None:
        """Delete the least recently used values until nine tenths of the limit are left."""

        def delete(connection: sqlite3.Connection) -> None:
            (total,) = connection.execute("SELECT total(num_bytes) FROM entries").fetchone()
            if total <= self._max_bytes:
                return
            keys, excess = [], total - 0.9 * self._max_bytes
            for key, value_id, num_bytes in connection.execute(
                "SELECT key, value_id, num_bytes FROM entries ORDER BY used, value_id"
            ):
                keys.append((value_id, key))
                excess -= num_bytes
                if excess <= 0:
                    break
            connection.executemany("DELETE FROM contents WHERE value_id = ?", [(value_id,) for value_id, _ in keys])
            connection.executemany("DELETE FROM entries WHERE key = ?", [(key,) for _, key in keys])
            connection.execute("PRAGMA incremental_vacuum").fetchall()

        self._database.run_transaction(delete)

    def _touch(self) -> None:
        touched, self._touched = self._touched, set()
        if touched:
            rows = [(int(time.time()), key) for key in touched]
            self._database.run_transaction(
                lambda connection: connection.executemany("UPDATE entries SET used = ? WHERE key = ?", rows)
            )

    def _make_key(self, content_hash: str) -> bytes:
        return blake2b(self._fingerprint + content_hash.encode(), digest_size=16).digest()


def _to_little_endian(ids: NDArray[np.uint32]) -> bytes:
    return ids.astype("<u4", copy=False).tobytes()


def _compute_checksum(key: bytes, value: bytes) -> bytes:
    return blake2b(key + value, digest_size=16).digest()


def _unpack(key: bytes, value: Any, checksum: bytes) -> NDArray[np.uint32] | None:
    """Return the ids, read-only; None if the row's checksum is wrong."""
    if not isinstance(value, bytes) or _compute_checksum(key, value) != checksum:
        return None
    ids = np.frombuffer(zlib.decompress(value), "<u4").astype(np.uint32, copy=False)
    ids.flags.writeable = False
    return ids
