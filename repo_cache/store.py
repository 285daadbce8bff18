"""Keeps token ids on disk by content hash, and which content each file had when it was last looked at."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from repo_cache.reading import FileStat

logger = logging.getLogger(__name__)

SCHEMA = 1
"""Is in the file's name: programs of two versions do not meet in one file."""

APPLICATION_ID = 0x48756E6B
DEFAULT_STORE_BYTES = 2 << 30
LOCKED_SECONDS = 2.0
"""How long another process may keep the file locked; then what was to be read is not there, and what was to be written
is not written.
"""

TOUCH_SECONDS = 86_400
"""When a value was last used is known to a day: reading writes nothing on most days."""

BATCH_ROWS = 400
BATCH_BYTES = 4 << 20
"""Of one transaction: others wait no longer than one takes (some 50 ms)."""

MAX_PENDING_BYTES = 64 << 20
MAX_ROOTS = 64
RECORD_DIGEST = 8
"""Bytes of the checksum of a file's record."""

TABLES = """
CREATE TABLE entries (key BLOB PRIMARY KEY, value_id INTEGER NOT NULL, num_bytes INTEGER NOT NULL,
                      used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX entries_used ON entries (used);
CREATE TABLE contents (value_id INTEGER PRIMARY KEY, value BLOB NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE roots (root TEXT PRIMARY KEY, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE files (root TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
                    ctime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, content_hash TEXT NOT NULL,
                    reason TEXT NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (root, path)) WITHOUT ROWID;
"""

KNOWN = "SELECT 1 FROM entries JOIN contents USING (value_id) WHERE key = ?"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was when it was last read: its stat, and the SHA-256 of its bytes; or why it is skipped."""

    stat: FileStat
    content_hash: str
    reason: str = ""


class TokenStore:
    """A cache in `folder` that several processes may use at once; safe to use from several threads.

    It never gives a wrong answer and never fails: every value and every record is checksummed together with what it is
    kept for, a damaged one is as if it were not there, a damaged file is made anew, a locked one is a miss. Where the
    folder cannot be written, or the disk is full, it goes on without, and `notice` is told once.

    Ids lie there compressed (zlib, level 1): a third of the bytes for 4 % of the time that encoding takes.
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
        self._notice = notice
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._writer = ThreadPoolExecutor(1, "hunk-store")
        self._pending_bytes = 0
        self._touched: set[bytes] = set()
        self._given_up = False
        self._rebuilt = False
        with self._lock:
            self._attempt(lambda connection: None, None)

    @property
    def usable(self) -> bool:
        """Whether there still is a file to read from and write to."""
        return not self._given_up

    def read(self, hashes: Iterable[str]) -> dict[str, NDArray[np.uint32]]:
        """The token ids of those contents (SHA-256, hex) that are known; the rest is left out."""
        keys = {self._key(content_hash): content_hash for content_hash in hashes}
        found: dict[str, NDArray[np.uint32]] = {}
        remaining = iter(keys)
        while batch := list(islice(remaining, BATCH_ROWS)):
            for key, value, checksum in self._rows(batch):
                ids = _unpacked(key, value, checksum)
                if ids is None:
                    self._submit(lambda key=key: self._forget(key), 0)  # type: ignore[misc]
                else:
                    found[keys[key]] = ids
        return found

    def write(self, contents: Mapping[str, NDArray[np.uint32]]) -> None:
        """Keep the token ids of these contents, soon and in the background."""
        size = sum(ids.nbytes for ids in contents.values())
        self._submit(lambda: self._write(contents), size)

    def read_records(self, root: str) -> dict[str, FileRecord]:
        """What the files below a root, by path, were at last."""
        with self._lock:
            rows: list[tuple[Any, ...]] = self._attempt(
                lambda connection: connection.execute(
                    "SELECT path, size, mtime_ns, ctime_ns, inode, content_hash, reason, checksum FROM files "
                    "WHERE root = ?",
                    (root,),
                ).fetchall(),
                [],
            )
        return {path: FileRecord(FileStat(*row[:4]), *row[4:6]) for path, *row in rows if _intact(root, path, row)}

    def write_records(self, root: str, records: Mapping[str, FileRecord | None]) -> None:
        """Remember these files below a root, forget those of None, soon and in the background."""
        self._submit(lambda: self._write_records(root, records), 200 * len(records))

    def flush(self) -> None:
        """Wait until all that was to be written is."""
        with suppress(RuntimeError):  # closed
            self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write what there is to write and let go of the file; nothing happens the second time."""
        self._submit(self._touch, 0)
        self._writer.shutdown()
        with self._lock:
            self._given_up = True
            self._drop_connection()

    def _submit(self, job: Callable[[], None], num_bytes: int) -> None:
        """Have the writing thread do it; left undone where a slow disk has let too much pile up."""
        if self._given_up or (num_bytes and self._pending_bytes > MAX_PENDING_BYTES):
            return
        self._pending_bytes += num_bytes

        def done(_: Future[None]) -> None:
            self._pending_bytes -= num_bytes

        with suppress(RuntimeError):  # closed
            self._writer.submit(job).add_done_callback(done)

    def _rows(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes, bytes]]:
        now = int(time.time())
        marks = ",".join("?" * len(keys))
        query = (
            "SELECT key, value, checksum, used FROM entries JOIN contents USING (value_id) "
            f"WHERE key IN ({marks})"  # only question marks are put in
        )
        rows: list[tuple[bytes, bytes, bytes, int]]
        with self._lock:
            rows = self._attempt(lambda connection: connection.execute(query, keys).fetchall(), [])
        self._touched.update(key for key, _, _, used in rows if abs(now - used) > TOUCH_SECONDS)
        return [(key, value, checksum) for key, value, checksum, _ in rows]

    def _write(self, contents: Mapping[str, NDArray[np.uint32]]) -> None:
        packed = []
        size = 0
        for content_hash, ids in contents.items():
            key, value = self._key(content_hash), zlib.compress(_little_endian(ids), 1)
            packed.append((key, value, _checksum(key, value)))
            size += len(value)
            if size > BATCH_BYTES or len(packed) >= BATCH_ROWS:
                self._write_packed(packed)
                packed, size = [], 0
        if packed:
            self._write_packed(packed)
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

        self._change(write)

    def _forget(self, key: bytes) -> None:
        """Take out a value that is damaged, so that a good one can come in its place."""

        def delete(connection: sqlite3.Connection) -> None:
            connection.execute(
                "DELETE FROM contents WHERE value_id IN (SELECT value_id FROM entries WHERE key = ?)", (key,)
            )
            connection.execute("DELETE FROM entries WHERE key = ?", (key,))

        self._change(delete)

    def _evict(self) -> None:
        """Down to nine tenths of the limit, those first that were not used for longest."""

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

        self._change(delete)

    def _touch(self) -> None:
        touched, self._touched = self._touched, set()
        if touched:
            rows = [(int(time.time()), key) for key in touched]
            self._change(lambda connection: connection.executemany("UPDATE entries SET used = ? WHERE key = ?", rows))

    def _write_records(self, root: str, records: Mapping[str, FileRecord | None]) -> None:
        gone = [(root, path) for path, record in records.items() if record is None]
        kept = [_record_row(root, path, record) for path, record in records.items() if record is not None]

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO roots VALUES (?, ?)", (root, int(time.time())))
            connection.executemany("DELETE FROM files WHERE root = ? AND path = ?", gone)
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kept)
            old = connection.execute(
                "SELECT root FROM roots ORDER BY used DESC LIMIT -1 OFFSET ?", (MAX_ROOTS,)
            ).fetchall()
            connection.executemany("DELETE FROM files WHERE root = ?", old)
            connection.executemany("DELETE FROM roots WHERE root = ?", old)

        self._change(write)

    def _key(self, content_hash: str) -> bytes:
        return blake2b(self._fingerprint + content_hash.encode(), digest_size=16).digest()

    def _change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """All of a change or nothing of it."""

        def attempt(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            try:
                change(connection)
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

        with self._lock:
            self._attempt(attempt, None)

    def _attempt(self, use: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """What a use of the file gives; `otherwise` where it is locked, damaged (it is made anew) or out of reach.

        The caller holds the lock.
        """
        if self._given_up:
            return otherwise
        try:
            if self._connection is None:
                self._connection = _opened(self.path)
            return use(self._connection)
        except (sqlite3.Error, OSError) as error:
            self._repair(error)
        return otherwise

    def _repair(self, error: Exception) -> None:
        code = getattr(error, "sqlite_errorcode", None)
        kind = code & 0xFF if code is not None else None
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            logger.debug("the store %s is locked: %s", self.path, error)
            return
        self._drop_connection()
        damaged = isinstance(error, sqlite3.Error) and kind not in _OUT_OF_REACH
        if damaged and not self._rebuilt:
            self._rebuilt = True  # once: a disk that damages what is written on it is no place for a cache
            logger.info("the store %s is damaged (%s) and made anew", self.path, error)
            with suppress(OSError):
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                return
        self._given_up = True
        self._notice(f"token ids are not kept on disk: {self.path}: {error}")

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


_OUT_OF_REACH = {
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_AUTH,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_NOLFS,
}
"""Faults of the disk or the folder, against which a new file does not help."""


def _opened(path: Path) -> sqlite3.Connection:
    """A connection to the file, made where there is none; raises sqlite3.Error or OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=LOCKED_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION_ID and tables:
            raise sqlite3.DatabaseError("it is not a store of this program")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        connection.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            _create(connection)
        connection.execute("SELECT value_id FROM entries LIMIT 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables, unless another process has done so meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")


def _little_endian(ids: NDArray[np.uint32]) -> bytes:
    return ids.astype("<u4", copy=False).tobytes()


def _checksum(key: bytes, value: bytes) -> bytes:
    return blake2b(key + value, digest_size=16).digest()


def _unpacked(key: bytes, value: Any, checksum: bytes) -> NDArray[np.uint32] | None:
    """The ids, read-only; None where the row is not what was written for this key."""
    if not isinstance(value, bytes) or _checksum(key, value) != checksum:
        return None
    ids = np.frombuffer(zlib.decompress(value), "<u4").astype(np.uint32, copy=False)
    ids.flags.writeable = False
    return ids


def _record_row(root: str, path: str, record: FileRecord) -> tuple[str | int | bytes, ...]:
    stat = record.stat
    row = (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, record.content_hash, record.reason)
    return root, path, *row, _record_checksum(root, path, row)


def _record_checksum(root: str, path: str, row: Sequence[str | int | bytes]) -> bytes:
    return blake2b(repr((root, path, *row)).encode(errors="surrogatepass"), digest_size=RECORD_DIGEST).digest()


def _intact(root: str, path: str, row: Sequence[str | int | bytes]) -> bool:
    return _record_checksum(root, path, row[:-1]) == row[-1]
