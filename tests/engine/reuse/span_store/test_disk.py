"""The disk tier: a file gives back what was put, byte for byte, or nothing."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from unittest import mock

import numpy as np
import pytest

from engine.reuse.disk_tier import ALIGNMENT, MAGIC, VERSION, DiskTier, SpanHeader, WriteBack
from tests.engine.reuse.span_store.stores import header_of, text

KV = bytes(random.Random(0).randbytes(50 * 256))
HEADER = header_of(text(0, 50), len(KV))
FOREIGN = {
    "root": b"s" * 32,
    "record": 8,
    "start": 41,
    "generation": 0,
    "num_layers": 2,
    "num_kv_heads": 4,
    "head_dim": 16,
    "dtype": "float16",
    "token_ids": text(1, 50).astype("<u4").tobytes(),
}


@pytest.fixture
def tier(tmp_path: Path) -> DiskTier:
    return DiskTier(tmp_path / "spans", 1 << 20, b"model")


def test_kv_that_somebody_without_the_key_has_put_there_is_not_read(tmp_path: Path) -> None:
    keyed = DiskTier(tmp_path / "spans", 1 << 20, b"model", b"key")
    for other in (b"", b"another key"):
        put(DiskTier(tmp_path / "spans", 1 << 20, b"model", other))
        assert list(keyed.headers()) == []
        assert keyed.get(HEADER) is None
    put(keyed)
    assert list(DiskTier(tmp_path / "spans", 1 << 20, b"model", b"key").headers()) == [HEADER]


def test_an_open_folder_is_closed_and_one_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spans"
    folder.mkdir(mode=0o755)
    put(DiskTier(folder, 1 << 20, b"model"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    others = DiskTier(folder, 1 << 20, b"model")
    assert not others.put(HEADER, memoryview(KV))
    assert "another user" in caplog.text
    assert list(others.headers()) == []
    assert others.get(HEADER) is None


def put(tier: DiskTier, header: SpanHeader = HEADER, kv: bytes = KV) -> None:
    assert tier.put(header, memoryview(kv))


def only_file(tier: DiskTier) -> Path:
    (path,) = tier.folder.iterdir()
    return path


def test_what_was_put_is_got_by_this_process_and_the_next(tier: DiskTier) -> None:
    put(tier)
    for each in (tier, DiskTier(tier.folder, 1 << 20, b"model")):
        got = each.get(HEADER)
        assert got is not None
        assert bytes(got) == KV
        assert list(each.headers()) == [HEADER]


def test_the_payload_begins_at_a_page_of_memory_so_that_it_can_be_mapped(tier: DiskTier) -> None:
    put(tier)
    mapped = np.memmap(only_file(tier), dtype=np.uint8, mode="r", offset=ALIGNMENT)
    assert bytes(mapped) == KV


def test_files_and_folder_are_for_their_owner_only(tier: DiskTier) -> None:
    put(tier)
    assert stat.S_IMODE(tier.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(tier).stat().st_mode) == 0o600


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tier: DiskTier) -> None:
    put(tier)
    path = only_file(tier)
    path.unlink()
    os.mkfifo(path)
    assert list(tier.headers()) == []
    assert tier.get(HEADER) is None


@pytest.mark.parametrize("length", [0, 1, 8, 100, 400, 500, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 77, -1])
def test_a_file_that_is_cut_off_is_a_miss(tier: DiskTier, length: int) -> None:
    put(tier)
    content = only_file(tier).read_bytes()
    only_file(tier).write_bytes(content[:length])
    assert list(tier.headers()) == []
    assert tier.get(HEADER) is None
    assert tier.get(HEADER) is None


def test_a_file_that_has_grown_is_a_miss(tier: DiskTier) -> None:
    put(tier)
    with only_file(tier).open("ab") as file:
        file.write(b"x")
    assert list(tier.headers()) == []
    assert tier.get(HEADER) is None


def test_every_flipped_bit_is_noticed(tier: DiskTier, caplog: pytest.LogCaptureFixture) -> None:
    put(tier)
    path, whole = only_file(tier), only_file(tier).read_bytes()
    num_head = int.from_bytes(whole[12:16], "little")
    places = [*range(600), *random.Random(0).sample(range(600, len(whole)), 400), len(whole) - 1]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        assert list(tier.headers()) == ([] if place < num_head else [HEADER]), "only the payload is not looked at"
        assert tier.get(HEADER) is None, f"byte {place}"
        assert not path.exists(), "what is damaged stays damaged"
    assert "is not used" in caplog.text


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_in_anothers_place_is_a_miss(tier: DiskTier, name: str) -> None:
    put(tier)
    path = only_file(tier)
    foreign: Any = {name: FOREIGN[name]}
    put(tier, replace(HEADER, **foreign))
    (other,) = set(tier.folder.iterdir()) - {path}
    other.replace(path)
    assert tier.get(HEADER) is None


def test_a_file_under_another_name_is_not_listed(tier: DiskTier) -> None:
    put(tier)
    only_file(tier).rename(tier.folder / "copy.kv")
    assert list(tier.headers()) == []


def test_models_share_a_folder_and_see_nothing_of_one_another(tier: DiskTier) -> None:
    other = DiskTier(tier.folder, 1 << 20, b"another model")
    put(tier)
    path = only_file(tier)
    assert list(other.headers()) == []
    assert other.get(HEADER) is None
    assert path.exists(), "it is another engine's, not damaged"
    put(other, HEADER, bytes(len(KV)))
    (foreign,) = set(tier.folder.iterdir()) - {path}
    foreign.replace(path)
    assert list(tier.headers()) == []
    assert tier.get(HEADER) is None


def test_another_version_of_the_format_is_not_read(tier: DiskTier) -> None:
    with mock.patch("engine.reuse.disk_tier.VERSION", VERSION + 1):
        put(tier)
        newer = only_file(tier)
    assert list(tier.headers()) == []
    assert tier.get(HEADER) is None
    put(tier)
    (ours,) = set(tier.folder.iterdir()) - {newer}
    newer.replace(ours)
    assert tier.get(HEADER) is None


def test_a_tenants_salt_and_the_fingerprint_are_not_in_the_file(tier: DiskTier) -> None:
    put(tier)
    content = only_file(tier).read_bytes()
    assert content.startswith(MAGIC)
    assert b"model" not in content


def test_the_least_recently_used_files_go_and_the_folder_keeps_its_size(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, 20 * (ALIGNMENT + len(KV)), b"model")
    headers = [replace(HEADER, record=record) for record in range(60)]
    for age, header in enumerate(headers):
        put(tier, header)
        for path in tmp_path.iterdir():  # an entry is used every second
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 1.0))
        if age >= 3:
            assert tier.get(headers[3]) is not None, "it is used all the time"
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= tier.capacity_bytes
    left = [header.record for header in tier.headers()]
    assert left[-1] == 3
    assert left[:-1] == sorted(left[:-1])
    assert left[-2] == 59
    assert len(left) >= 15


def test_an_entry_larger_than_all_is_not_kept(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, ALIGNMENT, b"model")
    assert not tier.put(HEADER, memoryview(KV))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="capacity_bytes is 0"):
        DiskTier(tmp_path, 0, b"model")


@pytest.mark.parametrize("when", ["begun", "written", "renamed"])
def test_on_a_full_disk_nothing_is_kept_and_nothing_left_behind(
    tier: DiskTier, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    target = {"begun": "tempfile.mkstemp", "written": "os.fdopen", "renamed": "pathlib.Path.replace"}[when]
    with mock.patch(target, side_effect=full), caplog.at_level(logging.WARNING):
        assert not tier.put(HEADER, memoryview(KV))
        assert not tier.put(HEADER, memoryview(KV))
    assert len(caplog.records) == 1, "a full disk is spoken of once"
    assert list(tier.folder.iterdir()) == []
    assert tier.get(HEADER) is None
    put(tier)
    assert tier.get(HEADER) is not None


def test_a_folder_that_was_removed_is_made_again(tier: DiskTier) -> None:
    put(tier)
    shutil.rmtree(tier.folder)
    assert not tier.put(HEADER, memoryview(KV))
    put(tier)
    assert list(tier.headers()) == [HEADER]


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """/dev/full takes no byte: the file is opened, and the write fails."""
    tier = DiskTier(tmp_path, 1 << 20, b"model")
    opened = os.open("/dev/full", os.O_WRONLY)
    partial = tmp_path / "x.partial"
    partial.touch()
    with mock.patch("tempfile.mkstemp", return_value=(opened, str(partial))):
        assert not tier.put(HEADER, memoryview(KV))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_had_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tier = DiskTier(tmp_path / "file" / "spans", 1 << 20, b"model")
    assert not tier.put(HEADER, memoryview(KV))
    assert tier.get(HEADER) is None
    assert list(tier.headers()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    tier = DiskTier(tmp_path, 1 << 20, b"model")
    assert not tier.put(HEADER, memoryview(KV))
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


def test_what_a_crash_left_unfinished_is_removed_and_what_another_process_writes_is_not(tier: DiskTier) -> None:
    put(tier)
    old, new = tier.folder / "old.partial", tier.folder / "new.partial"
    old.touch()
    new.touch()
    os.utime(old, (0, time.time() - 7200))
    assert list(tier.headers()) == [HEADER]
    assert not old.exists()
    assert new.exists()


def test_a_file_that_vanishes_while_the_folder_is_read(tier: DiskTier) -> None:
    put(tier)
    path = only_file(tier)
    found = tier._list_files()
    path.unlink()
    assert list(tier._read_headers(found)) == []
    assert tier.get(HEADER) is None


def test_two_engines_fill_one_folder_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each removes files that the other is reading; what is got is what was put."""
    kv = {record: random.Random(record).randbytes(len(KV)) for record in range(30)}

    def use(seed: int) -> int:
        tier, order = DiskTier(tmp_path, 8 * (ALIGNMENT + len(KV)), b"model"), random.Random(seed)
        num_got = 0
        for _ in range(300):
            record = order.randrange(30)
            header = replace(HEADER, record=record)
            if order.random() < 0.5:
                assert tier.put(header, memoryview(kv[record]))
            else:
                got = tier.get(header)
                assert got is None or bytes(got) == kv[record]
                num_got += got is not None
            list(tier.headers())
        return num_got

    with ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(use, range(3))) > 10
    assert caplog.records == []
    assert {path.suffix for path in tmp_path.iterdir()} == {".kv"}


# Write-back: puts do not wait, waiting entries can be read, and failed writes are counted.


HEADERS = [header_of(text(seed, 10), 100) for seed in range(5)]
PAYLOAD = memoryview(bytes(range(100)))


class SlowTier:
    """A tier in memory that writes when it is let."""

    capacity_bytes = 1 << 20

    def __init__(self) -> None:
        self.kept: dict[SpanHeader, memoryview] = {}
        self.may_write = Event()
        self.fault: Exception | None = None
        self.takes = True

    def put(self, header: SpanHeader, payload: memoryview) -> bool:
        assert self.may_write.wait(60)
        if self.fault is not None:
            raise self.fault
        if self.takes:
            self.kept[header] = payload
        return self.takes

    def get(self, header: SpanHeader) -> memoryview | None:
        return self.kept.get(header)

    def headers(self) -> Iterable[SpanHeader]:
        return list(self.kept)


@pytest.fixture
def slow_tier() -> SlowTier:
    return SlowTier()


@pytest.fixture
def write_back(slow_tier: SlowTier) -> Iterator[WriteBack]:
    each = WriteBack(slow_tier, most_waiting_bytes=250)
    yield each
    slow_tier.may_write.set()
    each.close()


def test_what_waits_can_be_had_and_too_much_is_dropped(slow_tier: SlowTier, write_back: WriteBack) -> None:
    assert [write_back.put(header, PAYLOAD) for header in HEADERS[:3]] == [True, True, False]
    assert write_back.put(HEADERS[0], PAYLOAD), "it waits already"
    assert [write_back.get(header) for header in HEADERS[:3]] == [PAYLOAD, PAYLOAD, None]
    assert write_back.num_dropped == 1
    assert not slow_tier.kept
    slow_tier.may_write.set()
    write_back.flush()
    assert list(write_back.headers()) == HEADERS[:2]
    assert [write_back.get(header) for header in HEADERS[:3]] == [PAYLOAD, PAYLOAD, None]
    assert write_back.put(HEADERS[2], PAYLOAD), "there is room again"


def test_close_writes_what_waits_and_takes_no_more(slow_tier: SlowTier, write_back: WriteBack) -> None:
    write_back.put(HEADERS[0], PAYLOAD)
    slow_tier.may_write.set()
    write_back.close()
    assert list(slow_tier.kept) == HEADERS[:1]
    assert not write_back.put(HEADERS[1], PAYLOAD)


def test_what_the_tier_does_not_take_is_counted_and_the_rest_goes_on(
    slow_tier: SlowTier, write_back: WriteBack
) -> None:
    slow_tier.takes = False
    slow_tier.may_write.set()
    write_back.put(HEADERS[0], PAYLOAD)
    write_back.flush()
    slow_tier.fault = ConnectionError("a tier on the network, badly written")
    write_back.put(HEADERS[1], PAYLOAD)
    write_back.flush()
    assert write_back.num_faults == 2
    slow_tier.takes, slow_tier.fault = True, None
    write_back.put(HEADERS[2], PAYLOAD)
    write_back.flush()
    assert list(slow_tier.kept) == HEADERS[2:3]
    assert write_back.get(HEADERS[0]) is None
