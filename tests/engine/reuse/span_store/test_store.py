"""What the span store returns is what was written, from memory, from disk or after a restart; or nothing."""

from __future__ import annotations

import errno
import gc
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from random import Random
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from engine.errors import DeviceError, EngineError
from engine.reuse.disk_tier import DiskTier
from engine.reuse.span_store import SpanMemory, SpanStore
from tests.engine.reuse.span_store.stores import (
    CONFIG,
    CPU,
    TOKEN_BYTES,
    Remembered,
    flush,
    held,
    remembered,
    stop,
    store_of,
    text,
)


class Faults(RuleBasedStateMachine):
    """A store with little memory before a disk that is damaged, filled, emptied and shared by another process.

    Whatever is found has the KV that was computed for just these tokens at just this place of this record.
    """

    @initialize(num_slots=st.integers(60, 600), num_disk_tokens=st.integers(100, 2000), seed=st.integers(0, 1 << 30))
    def begin(self, num_slots: int, num_disk_tokens: int, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.num_slots = num_slots
        self.capacity_bytes = num_disk_tokens * TOKEN_BYTES
        self.random = Random(seed)
        self.texts: list[NDArray[np.uint32]] = []
        self.kept: dict[int, tuple[bytes, int, NDArray[np.uint32], Remembered]] = {}  # by record
        self.stores = [self._open(), self._open()]

    @rule(num_tokens=st.integers(1, 60), root=st.sampled_from([b"one", b"two"]), generation=st.integers(0, 2))
    def enter(self, num_tokens: int, root: bytes, generation: int) -> None:
        token_ids = text(len(self.texts) % 20, num_tokens)
        start = self.random.randrange(300)
        one = remembered(self._store(), token_ids, root, generation, start)
        self.texts.append(token_ids)
        self.kept[one.record] = (root, start, token_ids, one)

    @rule(root=st.sampled_from([b"one", b"two"]))
    def find(self, root: bytes) -> None:
        if not self.texts:
            return
        store = self._store()
        prompt = np.concatenate([self.random.choice(self.texts[-12:]) for _ in range(4)])
        for match in store.find(root, prompt, 0):
            own_root, start, token_ids, one = self.kept[match.record]
            first = match.source - start
            end = first + len(match.slots)
            keys, values = held(store, match)
            assert own_root == root
            assert np.array_equal(token_ids[first:end], prompt[match.start : match.end])
            assert torch.equal(keys, one.keys[:, first:end])
            assert torch.equal(values, one.values[:, first:end])

    @rule(close=st.booleans())
    def restart(self, close: bool) -> None:
        which = self.random.randrange(2)
        if close:
            self.stores[which].close()
        else:  # a crash: what is in memory is lost
            stop(self.stores[which])
        self.stores[which] = self._open()

    @rule(damage=st.sampled_from(["flip", "cut", "remove", "swap"]))
    def damage(self, damage: str) -> None:
        for store in self.stores:
            flush(store)
        files = sorted(self.folder.glob("*.kv"))
        for path in self.random.sample(files, len(files) // 2):
            content = bytearray(path.read_bytes())
            if damage == "flip":
                content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
                path.write_bytes(content)
            elif damage == "cut":
                path.write_bytes(content[: self.random.randrange(len(content))])
            elif damage == "remove":
                path.unlink()
            else:
                self.random.choice(files).write_bytes(content)

    @rule(is_full=st.booleans())
    def fill(self, is_full: bool) -> None:
        for store in self.stores:
            flush(store)
        self.full.start() if is_full and not self.is_full else None
        self.full.stop() if self.is_full and not is_full else None
        self.is_full = is_full

    @invariant()
    def adds_up(self) -> None:
        for store in self.stores:
            store.check_integrity()

    full = mock.patch("tempfile.mkstemp", side_effect=OSError(errno.ENOSPC, "No space left on device"))
    is_full = False

    def teardown(self) -> None:
        if self.is_full:
            self.full.stop()
        for store in getattr(self, "stores", []):
            store.close()
        shutil.rmtree(getattr(self, "folder", ""), ignore_errors=True)

    def _open(self) -> SpanStore:
        return store_of(self.num_slots, DiskTier(self.folder, self.capacity_bytes, b"model"))

    def _store(self) -> SpanStore:
        return self.random.choice(self.stores)


TestFaults = Faults.TestCase
TestFaults.settings = settings(max_examples=25, stateful_step_count=30)


def disk(folder: Path, num_tokens: int = 100_000, fingerprint: bytes = b"model") -> DiskTier:
    return DiskTier(folder, num_tokens * TOKEN_BYTES, fingerprint)


def test_what_left_the_memory_comes_back_from_the_disk(tmp_path: Path) -> None:
    store = store_of(600, disk(tmp_path))
    first, _, third = (remembered(store, text(seed, 500)) for seed in range(3))
    assert store.stats().num_absent_tokens == 1000
    for seed, one in ((0, first), (2, third)):
        (match,) = store.find(b"root", text(seed, 500), 0)
        assert (match.record, match.source, len(match.slots)) == (one.record, 0, 499)
        keys, values = held(store, match)
        assert torch.equal(keys, one.keys[:, :499])
        assert torch.equal(values, one.values[:, :499])
        store.check_integrity()
    stats = store.stats()
    assert stats.num_tier_hits == 4
    assert (stats.num_tier_misses, stats.num_tier_faults, stats.num_tier_dropped) == (0, 0, 0)
    store.close()


def test_what_was_in_memory_is_there_after_a_restart(tmp_path: Path) -> None:
    store = store_of(600, disk(tmp_path))
    one = remembered(store, text(0, 500), generation=1, start=40)
    store.close()
    store = store_of(600, disk(tmp_path))
    assert store.find(b"other root", text(0, 500), 0) == []
    (match,) = store.find(b"root", text(0, 500), 0)
    assert (match.record, match.source, match.generation) == (one.record, 40, 1)
    assert torch.equal(held(store, match)[0], one.keys[:, :499])
    assert store.new_record() != one.record
    store.close()
    for other in (store_of(600, disk(tmp_path, fingerprint=b"other")), store_of(600, disk(tmp_path), torch.float16)):
        assert other.stats().num_absent_tokens == 0
        assert other.find(b"root", text(0, 500), 0) == []
        other.close()


def test_a_damaged_file_costs_what_is_in_it_and_nothing_else(tmp_path: Path) -> None:
    store = store_of(1200, disk(tmp_path))
    one = remembered(store, text(0, 1000))
    store.close()
    store = store_of(1200, disk(tmp_path))
    damaged = sorted(tmp_path.iterdir())[0]
    with damaged.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xaa")
    found = store.find(b"root", text(0, 1000), 0)
    num_lost = 1000 - 1 - sum(len(match.slots) for match in found)
    assert num_lost in (232, 231, 255, 256)
    for match in found:
        assert torch.equal(held(store, match)[0], one.keys[:, match.source : match.source + len(match.slots)])
    assert store.stats().num_tier_misses == 1
    assert store.find(b"root", text(0, 1000), 0) != []
    assert store.stats().num_tier_misses == 1, "what is lost is not asked for again"
    store.check_integrity()
    store.close()


def test_more_than_the_memory_holds_is_loaded_as_far_as_it_fits(tmp_path: Path) -> None:
    store = store_of(2000, disk(tmp_path))
    one = remembered(store, text(0, 2000))
    store.close()
    store = store_of(700, disk(tmp_path))
    found = store.find(b"root", text(0, 2000), 0)
    assert 0 < sum(len(match.slots) for match in found) <= 700
    for match in found:
        assert torch.equal(held(store, match)[0], one.keys[:, match.source : match.source + len(match.slots)])
    store.check_integrity()
    store.close()


def test_what_is_loaded_takes_no_room_from_what_is_found(tmp_path: Path) -> None:
    store = store_of(700, disk(tmp_path))
    on_disk = remembered(store, text(0, 512))
    in_memory = remembered(store, text(1, 512))
    found = store.find(b"root", np.concatenate((text(0, 512), text(1, 512))), 0)
    assert store.stats().num_tier_hits == 0, "nothing is read for which something that is found must go"
    assert [match.record for match in found if match.start >= 512] == [in_memory.record]
    assert sum(len(match.slots) for match in found if match.start >= 512) == 511
    for match in found:
        one = on_disk if match.record == on_disk.record else in_memory
        assert torch.equal(held(store, match)[0], one.keys[:, match.source : match.source + len(match.slots)])
    store.check_integrity()
    store.close()


@pytest.mark.parametrize("is_lost", [False, True])
def test_making_room_for_an_entry_may_have_it_forgotten(tmp_path: Path, is_lost: bool) -> None:
    """The disk holds so little that what leaves memory displaces what is about to be read, or was just missed."""
    store = store_of(512, disk(tmp_path, 600 if is_lost else 300))
    for seed in range(4 if is_lost else 3):
        remembered(store, text(seed, 256))
    flush(store)
    if is_lost:
        sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)[0].unlink()
    prompt = np.concatenate((text(0, 256), text(1, 256)))
    for match in store.find(b"root", prompt, 0):
        assert match.slots.size
    store.check_integrity()
    store.close()


def test_no_more_is_known_of_than_the_disk_can_hold(tmp_path: Path) -> None:
    store = store_of(512, disk(tmp_path, 600))
    for seed in range(8):
        remembered(store, text(seed, 256))
        store.check_integrity()
    assert store.stats().num_absent_tokens == 512
    store.close()


def test_superseded_entries_are_not_written_when_they_leave(tmp_path: Path) -> None:
    store = store_of(512, disk(tmp_path))
    remembered(store, text(0, 256), generation=1)
    exact = remembered(store, text(0, 256))
    remembered(store, text(1, 256))
    flush(store)
    assert list(disk(tmp_path).headers()) == []
    remembered(store, text(2, 256))
    flush(store)
    assert [header.record for header in disk(tmp_path).headers()] == [exact.record]
    store.close()


def test_what_the_disk_does_not_take_is_not_stored_any_more(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    store = store_of(600, disk(tmp_path))
    with mock.patch("tempfile.mkstemp", side_effect=full):
        remembered(store, text(0, 500))
        remembered(store, text(1, 500))
        flush(store)
        assert store.find(b"root", text(0, 500), 0) == []
        assert store.stats().num_tier_faults == 2
        store.close()
    assert store.stats().num_tier_faults == 4
    store.check_integrity()


def test_a_salt_cannot_be_read_on_the_disk(tmp_path: Path) -> None:
    store = store_of(600, disk(tmp_path))
    remembered(store, text(0, 500), root=b"fingerprint and the salt of a tenant")
    store.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert not any(b"tenant" in path.read_bytes() for path in tmp_path.iterdir())


def test_superseded_and_tiny_entries_are_not_written(tmp_path: Path) -> None:
    store = store_of(2000, disk(tmp_path))
    remembered(store, text(0, 200), generation=1)
    remembered(store, text(1, 7))
    exact = remembered(store, text(0, 200))
    store.close()
    (header,) = disk(tmp_path).headers()
    assert header.record == exact.record


def test_of_more_than_the_disk_holds_the_most_used_is_kept_at_the_end(tmp_path: Path) -> None:
    store = store_of(4000, disk(tmp_path, 700))
    used = remembered(store, text(0, 256))
    for seed in range(1, 10):
        remembered(store, text(seed, 256))
    store.find(b"root", text(0, 256), 0)
    store.close()
    kept = [header.record for header in disk(tmp_path).headers()]
    assert kept[-1] == used.record
    assert len(kept) <= 2


def test_what_is_forgotten_is_not_found(tmp_path: Path) -> None:
    store = store_of(600, disk(tmp_path))
    remembered(store, text(0, 500))
    store.reserve(50)
    store.forget()
    assert store.find(b"root", text(0, 500), 0) == []
    assert store.stats().num_tokens == 0
    slots = store.reserve(600)
    assert slots is not None
    store.check_integrity()
    store.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_is_written_is_found_in_all_layers(dtype: torch.dtype) -> None:
    store = store_of(1000, dtype=dtype)
    kept = remembered(store, text(0, 400))
    (match,) = store.find(b"root", text(0, 400), 100)
    for layer in range(CONFIG.num_layers):
        assert torch.equal(store.keys[layer][match.slots], kept.keys[layer, 100:399])
        assert torch.equal(store.values[layer][match.slots], kept.values[layer, 100:399])
    store.check_integrity()
    assert store.stats().num_bytes == 400 * TOKEN_BYTES // 2 * dtype.itemsize


def test_keys_that_lie_apart_in_memory_are_written_as_they_are() -> None:
    store = store_of(100)
    both = torch.randn(30, 2 * CONFIG.num_kv_heads, CONFIG.head_dim).to(torch.bfloat16)
    keys, values = both.chunk(2, dim=1)
    slots = store.reserve(30)
    assert slots is not None
    scattered = np.random.default_rng(0).permutation(slots)
    with torch.inference_mode():
        store.write(scattered, 1, keys, values)
    assert torch.equal(store.keys[1][scattered], keys)
    assert torch.equal(store.values[1][scattered], values)
    assert not store.keys[0].any()
    with pytest.raises(AssertionError, match="as they are"):
        store.write(slots, 1, keys.half(), values.half())


class CudaRuntime:
    """The two functions of CUDA's runtime, which note what they are asked for and answer `code`."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.mapped: dict[int, int] = {}

    def cudaHostRegister(self, address: int, num_bytes: int, flags: int) -> int:  # noqa: N802
        self.mapped[address] = num_bytes
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.mapped[address]
        return 0


def test_a_card_gets_at_host_memory_in_place_until_it_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = CudaRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr("engine.device.use_device", lambda device: nullcontext())
    memory = SpanMemory(CONFIG, torch.bfloat16, torch.device("cuda", 0), 40 * TOKEN_BYTES)
    assert all(each.device == CPU for each in (*memory.keys, *memory.values))
    assert runtime.mapped == {memory.keys[0].data_ptr(): 40 * TOKEN_BYTES}
    del memory
    gc.collect()
    assert not runtime.mapped
    SpanMemory(CONFIG, torch.bfloat16, CPU, 40 * TOKEN_BYTES)
    assert not runtime.mapped, "other devices have no such memory"


def test_the_host_overwrites_slots_after_the_card_has_done_what_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of a cancelled request still writes to slots that are given back and taken for what the disk has."""
    memory = SpanMemory(CONFIG, torch.bfloat16, CPU, 4 * TOKEN_BYTES)
    slots, waited = np.arange(4), list[torch.device]()
    payload = memory.payload(slots)

    def finish_pass(device: torch.device) -> None:
        waited.append(device)
        memory.keys[0].fill_(3.0)

    monkeypatch.setattr("engine.reuse.span_store.check_device", finish_pass)
    memory.restore(slots, payload)
    assert waited == [CPU]
    assert not memory.keys[0].any()


def test_a_driver_that_refuses_host_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: CudaRuntime(code=2))
    monkeypatch.setattr("engine.device.use_device", lambda device: nullcontext())
    with pytest.raises(DeviceError, match=r"cuda:0 cannot use 0\.0 GB of host memory \(cudaHostRegister: error 2\)"):
        SpanMemory(CONFIG, torch.bfloat16, torch.device("cuda", 0), 40 * TOKEN_BYTES)


def test_it_takes_as_many_tokens_as_its_bytes_hold() -> None:
    store = SpanStore(CONFIG, torch.bfloat16, CPU, capacity_bytes=10 * TOKEN_BYTES + TOKEN_BYTES - 1)
    assert store.num_slots == 10
    assert store.reserve(11) is None
    slots = store.reserve(10)
    assert slots is not None
    store.give_back(slots)
    store.check_integrity()


def test_too_few_bytes_and_too_many_are_refused() -> None:
    with pytest.raises(EngineError, match="takes 256"):
        SpanStore(CONFIG, torch.bfloat16, CPU, capacity_bytes=TOKEN_BYTES - 1)
    with pytest.raises(EngineError, match="no memory for 1000000000"):
        SpanStore(CONFIG, torch.bfloat16, CPU, capacity_bytes=10**18)
