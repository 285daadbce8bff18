"""A SQLite file that may be damaged, locked, read-only or missing at any time without a failure of its users."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from repo_cache.files import make_private, make_private_file

logger = logging.getLogger(__name__)

APPLICATION_ID = 0x48756E6B
LOCKED_SECONDS = 2.0
"""How long to wait while another process locks the file; then a read finds nothing and a write is dropped."""

MAX_PENDING_BYTES = 64 << 20
"""The most bytes that wait to be written."""

TABLES = """
CREATE TABLE entries (key BLOB PRIMARY KEY, value_id INTEGER NOT NULL, num_bytes INTEGER NOT NULL,
                      used INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX entries_used ON entries (used);
CREATE TABLE contents (value_id INTEGER PRIMARY KEY, value BLOB NOT NULL, checksum BLOB NOT NULL);
CREATE TABLE roots (root BLOB PRIMARY KEY, used INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE files (root BLOB NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
                    ctime_ns INTEGER NOT NULL, inode INTEGER NOT NULL, content_hash TEXT NOT NULL,
                    reason TEXT NOT NULL, checksum BLOB NOT NULL, PRIMARY KEY (root, path)) WITHOUT ROWID;
"""

Result = TypeVar("Result")


class Database:
    """Rows that several threads and processes read and change; one thread writes in the background.

    A read that fails returns nothing, and a write that fails is dropped. A locked file is tried again at the next use.
    A damaged file is recreated, once. If the folder cannot be written, `notice` is called and the database is not used
    any more.
    """

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        self.path = path
        self._notice = notice
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._writer = ThreadPoolExecutor(1, "hunk-store")
        self._counting = threading.Lock()
        self._pending_bytes = 0
        self._given_up = False
        self._rebuilt = False
        self.query("SELECT 1")

    @property
    def is_usable(self) -> bool:
        """Whether the file can still be used."""
        return not self._given_up

    def query(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if the file cannot be read."""
        with self._lock:
            return self._try_query(lambda connection: connection.execute(query, values).fetchall(), [])

    def run_transaction(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """Apply a change completely or not at all."""

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
            self._try_query(attempt, None)

    def submit(self, job: Callable[[], None], num_bytes: int) -> None:
        """Run a job in the writing thread; it is dropped if too many bytes are waiting on a slow disk."""
        if self._given_up or (num_bytes and self._pending_bytes > MAX_PENDING_BYTES):
            return
        with self._counting:
            self._pending_bytes += num_bytes

        def on_done(_: Future[None]) -> None:
            with self._counting:
                self._pending_bytes -= num_bytes

        with suppress(RuntimeError):  # closed
            self._writer.submit(job).add_done_callback(on_done)

    def flush(self) -> None:
        """Wait until all submitted jobs are done."""
        with suppress(RuntimeError):  # closed
            self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Finish the waiting jobs and close the file. A second call does nothing."""
        self._writer.shutdown()
        with self._lock:
            self._given_up = True
            self._drop_connection()

    def _try_query(self, use: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """Use the file and return the result; `otherwise` if it is locked, damaged (it is recreated) or out of reach.

        The caller holds the lock.
        """
        if self._given_up:
            return otherwise
        try:
            if self._connection is None:
                self._connection = _open(self.path)
            return use(self._connection)
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:  # the last two: damaged values
            self._repair(error)
        return otherwise

    def _repair(self, error: Exception) -> None:
        code = getattr(error, "sqlite_errorcode", None)
        kind = code & 0xFF if code is not None else None
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            logger.debug("the store %s is locked: %s", self.path, error)
            return
        self._drop_connection()
        damaged = not isinstance(error, OSError) and kind not in _OUT_OF_REACH
        if damaged and not self._rebuilt:
            self._rebuilt = True  # once: a disk that damages data is no place for a cache
            logger.info("the store %s is damaged (%s) and recreated", self.path, error)
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
"""Faults of the disk or the folder, which a new file does not cure."""


def _open(path: Path) -> sqlite3.Connection:
    """Open the file, creating it if necessary. Raises sqlite3.Error or OSError."""
    make_private(path.parent)
    for suffix in ("", "-wal", "-shm"):
        if not suffix or Path(f"{path}{suffix}").exists():  # SQLite creates them with the mode of the first
            make_private_file(Path(f"{path}{suffix}"))
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
    """Create the tables, unless another process has just done so."""
    connection.execute("BEGIN IMMEDIATE")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not tables:
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("COMMIT")
