"""The size and the device of an engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import device as devices
from engine.device import resolve_device, use_device
from engine.engine_config import EngineConfig
from engine.errors import DeviceError
from engine.kv_pool import KVPool, page_bytes
from engine.scheduler import SchedulerConfig
from tests.engine.tiny import tiny_config


@pytest.mark.parametrize(("max_num_seqs", "num_pages"), [(1, 4), (2, 8), (50, 8)])
def test_without_a_size_the_pool_holds_two_of_the_longest_or_the_only_one(max_num_seqs: int, num_pages: int) -> None:
    config = EngineConfig(max_seq_len=100, page_size=32, scheduler=SchedulerConfig(max_num_seqs=max_num_seqs))
    assert config.num_pages(page_bytes(tiny_config(), 32, torch.float32)) == num_pages
    assert replace(config, kv_sequences=1).num_pages(page_bytes(tiny_config(), 32, torch.float32)) == 4


def test_a_size_in_bytes_is_kept_to() -> None:
    model = tiny_config()
    one_page = page_bytes(model, 16, torch.bfloat16)
    for kv_bytes in (one_page, 100_000):
        num_pages = EngineConfig(kv_bytes=kv_bytes, page_size=16).num_pages(one_page)
        pool = KVPool(model, num_pages, 16, torch.device("cpu"), torch.bfloat16)
        taken = sum(tensor.nbytes for tensor in (*pool.keys, *pool.values))
        assert taken <= kv_bytes < taken + one_page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_len": 0}, "max_seq_len is 0; it must be at least 1"),
        ({"max_seq_len": 1}, "a prompt and an output need a token each"),
        ({"kv_bytes": 0}, "kv_bytes is 0"),
        ({"page_size": -3}, "page_size is -3"),
        ({"most_graphs": -1}, "most_graphs is -1"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**changes)


def test_a_pool_smaller_than_a_page_is_refused_with_the_size_of_one() -> None:
    with pytest.raises(ValueError, match="kv_bytes is 100; one page of 32 tokens takes 8192"):
        EngineConfig(kv_bytes=100).num_pages(page_bytes(tiny_config(), 32, torch.float32))


# A device that is not there is refused with what to do.


def test_the_cpu_is_always_there() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with use_device(torch.device("cpu")):
        pass


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "CUDA", "MPS", "mps:1", "cuda:-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="none of cpu, cuda, cuda:N and mps"):
        resolve_device(name)


def test_a_card_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"'cuda'.*built without CUDA.*leave the device out to run on the CPU"):
        resolve_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(DeviceError, match=r"finds no NVIDIA card.*nvidia-smi"):
        resolve_device("cuda:1")


def test_a_macs_gpu_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"GPU of a Mac.*leave the device out to run on the CPU"):
        resolve_device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("mps") == torch.device("mps")


def test_what_a_card_needs_beside_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(DeviceError, match="there are 2 cards, the last is cuda:1"):
        resolve_device("cuda:2")
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"pip install 'hunk-apply\[gpu\]'"):
        resolve_device("cuda")
