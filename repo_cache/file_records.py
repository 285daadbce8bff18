"""What the store remembers of files: the stat and the content that they had when they were last read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from repo_cache.reading import FileStat

MAX_ROOTS = 64
"""Folders whose files are remembered; those seen longest ago go."""

CHECKSUM_BYTES = 8
COLUMNS = "path, size, mtime_ns, ctime_ns, inode, content_hash, reason, checksum"
SELECT = f"SELECT {COLUMNS} FROM files WHERE root = ?"


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file was when it was last read: its stat, and the SHA-256 of its bytes; or why it is skipped."""

    stat: FileStat
    content_hash: str
    reason: str = ""


def records_of(root: bytes, rows: Sequence[Sequence[Any]]) -> dict[str, FileRecord]:
    """By path, from the rows of `SELECT`; those that are not what was written are left out."""
    return {path: FileRecord(FileStat(*row[:4]), *row[4:6]) for path, *row in rows if _intact(root, path, row)}


def write_records(connection: sqlite3.Connection, root: bytes, records: Mapping[str, FileRecord | None]) -> None:
    """Put them in, take those of None out, and forget the roots that were not seen for longest."""
    gone = [(root, path) for path, record in records.items() if record is None]
    kept = [_record_row(root, path, record) for path, record in records.items() if record is not None]
    connection.execute("INSERT OR REPLACE INTO roots VALUES (?, ?)", (root, int(time.time())))
    connection.executemany("DELETE FROM files WHERE root = ? AND path = ?", gone)
    connection.executemany(f"INSERT OR REPLACE INTO files (root, {COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", kept)
    oldest = "SELECT root FROM roots ORDER BY used DESC LIMIT -1 OFFSET ?"
    old = connection.execute(oldest, (MAX_ROOTS,)).fetchall()
    connection.executemany("DELETE FROM files WHERE root = ?", old)
    connection.executemany("DELETE FROM roots WHERE root = ?", old)


def _record_row(root: bytes, path: str, record: FileRecord) -> tuple[str | bytes | int, ...]:
    stat = record.stat
    row = (stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode, record.content_hash, record.reason)
    return root, path, *row, _record_checksum(root, path, row)


def _record_checksum(root: bytes, path: str, row: Sequence[str | int | bytes]) -> bytes:
    return blake2b(repr((root, path, *row)).encode(errors="surrogatepass"), digest_size=CHECKSUM_BYTES).digest()


def _intact(root: bytes, path: str, row: Sequence[str | int | bytes]) -> bool:
    return _record_checksum(root, path, row[:-1]) == row[-1]
