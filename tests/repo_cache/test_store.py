"""The store returns what was put in, or nothing: never a wrong answer, never an exception."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from repo_cache import database, store
from repo_cache.files import FileStat
from repo_cache.store import FileRecord, TokenStore

Ids = NDArray[np.uint32]
RECORD = FileRecord(FileStat(10, 123456789, 223456789, 42), "ab" * 32)


def content(number: int, length: int = 50) -> tuple[str, Ids]:
    """A hash and some ids."""
    generator = np.random.default_rng(number)
    return sha256(str(number).encode()).hexdigest(), generator.integers(0, 150_000, length, dtype=np.uint32)


def contents(count: int, length: int = 50) -> dict[str, Ids]:
    return dict(content(number, length) for number in range(count))


def same(found: dict[str, Ids], expected: dict[str, Ids]) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[key], expected[key]) for key in expected)


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def opened(tmp_path: Path, notices: list[str]) -> Iterator[Callable[..., TokenStore]]:
    stores = []

    def open_store(fingerprint: bytes = b"f" * 16, **options: Any) -> TokenStore:
        stores.append(TokenStore(tmp_path / "store", fingerprint, notice=notices.append, **options))
        return stores[-1]

    yield open_store
    for one in stores:
        one.close()


Opened = Callable[..., TokenStore]


def test_what_was_written_is_read_again_by_the_next_process_and_by_no_other_tokenizer(opened: Opened) -> None:
    expected = contents(1000)
    first = opened()
    first.write(expected)
    first.close()
    again = opened()
    assert same(again.read(expected), expected)
    assert again.read([content(5000)[0]]) == {}
    assert all(not ids.flags.writeable and ids.dtype == np.uint32 for ids in again.read(expected).values())
    assert opened(b"g" * 16).read(expected) == {}


@pytest.mark.parametrize("length", [0, 1, 100_000])
def test_any_number_of_ids(opened: Opened, length: int) -> None:
    expected = contents(1, length)
    one = opened()
    one.write(expected)
    one.flush()
    assert same(one.read(expected), expected)


def test_records_are_of_their_root_and_forgotten_where_none_is_given(opened: Opened) -> None:
    one = opened()
    skipped = FileRecord(RECORD.stat, "", "binary")
    one.write_records("/r", {"a.py": RECORD, "b": skipped, "süß\u2028.py": RECORD})
    one.write_records("/q", {"a.py": RECORD})
    one.write_records("/\udcff", {"a.py": RECORD})
    one.write_records("/r", {"a.py": None, "no.py": None})
    one.flush()
    assert one.read_records("/r") == {"b": skipped, "süß\u2028.py": RECORD}
    assert one.read_records("/q") == one.read_records("/\udcff") == {"a.py": RECORD}


def test_the_roots_seen_longest_ago_are_forgotten(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_ROOTS", 3)
    one = opened()
    for number in range(6):
        monkeypatch.setattr(time, "time", lambda number=number: 1000.0 + number)
        one.write_records(f"/{number}", {"a": RECORD})
        one.flush()
    assert [number for number in range(6) if one.read_records(f"/{number}")] == [3, 4, 5]


def damaged(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE contents SET value = zeroblob(length(value))",
        "UPDATE contents SET value = substr(value, 1, length(value) - 1)",
        "UPDATE contents SET value = 'text'",
        "UPDATE entries SET value_id = 3 - value_id",
        "DELETE FROM contents",
        "DELETE FROM entries",
    ],
)
def test_a_damaged_row_is_a_miss_and_can_be_written_anew(opened: Opened, notices: list[str], statement: str) -> None:
    expected = contents(2)
    first = opened()
    first.write(expected)
    first.close()
    damaged(first.path, statement)
    again = opened()
    assert again.read(expected) == {}
    again.write(expected)
    again.flush()
    assert same(again.read(expected), expected)
    assert notices == []


@pytest.mark.parametrize(
    "change", ["size = size + 1", "content_hash = reason", "reason = 'x'", "root = '/s'", "path = 'c'", "mtime_ns = 0"]
)
def test_a_damaged_record_is_no_record(opened: Opened, change: str) -> None:
    first = opened()
    first.write_records("/r", {"a": RECORD})
    first.close()
    damaged(first.path, f"UPDATE files SET {change}")
    assert opened().read_records("/r") == {}
    assert opened().read_records("/s") == {}


def overwrite(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


def foreign(path: Path) -> None:
    path.unlink()
    damaged(path, "CREATE TABLE entries (something)")


def other_tables(path: Path) -> None:
    damaged(path, "ALTER TABLE entries RENAME TO things")


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [overwrite(b""), overwrite(b"no database" * 500), foreign, other_tables, cut_short])
def test_a_damaged_or_foreign_file_is_made_anew(
    opened: Opened, notices: list[str], damage: Callable[[Path], None]
) -> None:
    expected = contents(300)
    first = opened()
    first.write(expected)
    first.close()
    damage(first.path)
    again = opened()
    read = again.read(expected)
    assert same(read, {key: expected[key] for key in read})
    again.write(expected)
    again.write(expected)
    again.flush()
    assert same(again.read(expected), expected)
    assert notices == []


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9))
def test_bytes_changed_anywhere_in_the_file_never_give_a_wrong_answer(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    folder = tmp_path / str(seed)
    expected = contents(60)
    records = {f"{number}.py": RECORD for number in range(60)}
    first = TokenStore(folder, b"f" * 16)
    first.write(expected)
    first.write_records("/r", records)
    first.close()
    data = bytearray(first.path.read_bytes())
    for _ in range(random.randint(1, 40)):
        place = random.randrange(len(data))
        data[place] = random.randrange(256)
    first.path.write_bytes(data)
    again = TokenStore(folder, b"f" * 16)
    read, known = again.read(expected), again.read_records("/r")
    again.close()
    assert same(read, {key: expected[key] for key in read})
    assert set(known) <= set(records)
    assert set(known.values()) <= {RECORD}


def test_what_was_not_used_for_longest_goes_where_there_is_too_much(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(max_bytes=100_000)
    for number in range(50):
        monkeypatch.setattr(time, "time", lambda number=number: number * 1e6)
        one.write(dict([content(number, 1000)]))
        one.read([content(0)[0]])
        one._database.submit(one._touch, 0)
        one._database.submit(one._evict, 0)
        one.flush()
    left = [number for number in range(50) if one.read([content(number)[0]])]
    assert left[0] == 0, "it was read all the time"
    assert left[1:] == list(range(left[1], 50))
    assert 10 < len(left) < 45
    connection = sqlite3.connect(one.path)
    (total,) = connection.execute("SELECT total(num_bytes) FROM entries").fetchone()
    (orphans,) = connection.execute(
        "SELECT count(*) FROM contents WHERE value_id NOT IN (SELECT value_id FROM entries)"
    ).fetchone()
    connection.close()
    assert 0 < total <= 100_000
    assert orphans == 0


def test_reading_what_was_used_today_writes_nothing(opened: Opened) -> None:
    one = opened()
    one.write(contents(5))
    one.flush()
    one.read(contents(5))
    assert one._touched == set()


def test_a_locked_file_is_a_miss_and_good_again_later(
    opened: Opened, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCKED_SECONDS", 0.05)
    expected = contents(3)
    one = opened()
    other = sqlite3.connect(one.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    one.write(expected)
    one.flush()
    assert one.read(expected) == {}
    other.execute("ROLLBACK")
    other.close()
    one.write(expected)
    one.flush()
    assert same(one.read(expected), expected)
    assert notices == []


def test_a_file_that_is_locked_as_a_whole_while_it_is_opened_is_a_miss(
    opened: Opened, tmp_path: Path, notices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCKED_SECONDS", 0.05)
    (tmp_path / "store").mkdir()
    other = sqlite3.connect(tmp_path / "store" / "tokens-1.sqlite3", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    one = opened()
    one.write(contents(3))
    one.flush()
    assert one.read(contents(3)) == {}
    other.execute("ROLLBACK")
    other.close()
    one.write(contents(3))
    one.flush()
    assert same(one.read(contents(3)), contents(3))
    assert notices == []


def test_a_folder_that_cannot_be_made_is_said_once(tmp_path: Path, notices: list[str]) -> None:
    (tmp_path / "file").write_text("")
    one = TokenStore(tmp_path / "file" / "store", b"f", notice=notices.append)
    one.write(contents(3))
    one.write_records("/r", {"a": RECORD})
    one.flush()
    assert one.read(contents(3)) == {}
    assert one.read_records("/r") == {}
    assert not one.is_usable
    assert len(notices) == 1
    one.close()
    one.close()


@pytest.mark.parametrize(
    ("code", "text"), [(sqlite3.SQLITE_FULL, "database or disk is full"), (sqlite3.SQLITE_READONLY, "readonly")]
)
def test_a_full_disk_or_a_read_only_folder_is_said_once_and_gone_on_without(
    opened: Opened, notices: list[str], code: int, text: str
) -> None:
    one = opened()

    def fail(_: sqlite3.Connection) -> None:
        error = sqlite3.OperationalError(text)
        error.sqlite_errorcode = code
        raise error

    one._database.run_transaction(fail)
    one.write(contents(3))
    one.flush()
    assert one.read(contents(3)) == {}
    assert one.path.exists()
    assert len(notices) == 1
    assert text in notices[0]


def test_a_disk_that_damages_what_is_written_is_given_up_on(opened: Opened, notices: list[str]) -> None:
    one = opened()
    for _ in range(3):
        one._database.run_transaction(lambda connection: connection.execute("SELECT nothing FROM nowhere"))
    assert len(notices) == 1
    assert not one.is_usable


def test_a_slow_disk_does_not_fill_the_memory(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MAX_PENDING_BYTES", 10_000)
    one = opened()
    blocked = threading.Event()
    one._database.submit(lambda: blocked.wait() and None, 0)
    expected = contents(100, 1000)
    for key, ids in expected.items():
        one.write({key: ids})
    blocked.set()
    one.flush()
    assert 1 <= len(one.read(expected)) <= 4
    one.write(expected)
    one.flush()
    assert len(one.read(expected)) == 100


WRITER = """
import sys
from pathlib import Path
from repo_cache.store import TokenStore
from tests.repo_cache.test_store import contents, same
said = []
store = TokenStore(Path(sys.argv[1]), b"f" * 16, notice=said.append)
expected = contents(400)
items = list(expected.items())
for start in range(int(sys.argv[2]), 400, 4):
    store.write(dict(items[start : start + 40]))
    found = store.read(expected)
    assert same(found, {key: expected[key] for key in found})
store.close()
assert said == [], said
"""


def test_several_processes_at_once(opened: Opened, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store")]
    running = [subprocess.Popen([*command, str(start)], stderr=subprocess.PIPE, text=True) for start in range(2)]
    assert [(process.communicate(timeout=120)[1], process.returncode) for process in running] == [("", 0)] * 2
    expected = contents(400)
    assert same(opened().read(expected), expected)


def test_a_process_that_is_killed_leaves_a_good_file(opened: Opened, tmp_path: Path) -> None:
    running = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "store"), "0"], stderr=subprocess.PIPE)
    while not (tmp_path / "store" / "tokens-1.sqlite3-wal").exists() and running.poll() is None:
        pass
    running.kill()
    running.communicate()
    one = opened()
    expected = contents(400)
    found = one.read(expected)
    assert same(found, {key: expected[key] for key in found})
    one.write(expected)
    one.flush()
    assert same(one.read(expected), expected)
