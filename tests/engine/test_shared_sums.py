"""Sums through shared memory are those of the ranks' tensors, in every order that passes have them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import torch

from engine.errors import RankLost
from engine.tensor_parallel.shared_sums import NUM_SLOTS, SLOT_BYTES, SharedSums, can_share

pytestmark = pytest.mark.skipif(not can_share(), reason="needs Linux and a C++ compiler")


def on_ranks(file: Path, size: int, run: Callable[[SharedSums, int], object]) -> list[object]:
    SharedSums.create(file, size)
    ranks = [SharedSums(file, rank, size, lambda: None) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return [each.result(60) for each in [pool.submit(run, sums, rank) for rank, sums in enumerate(ranks)]]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("under_way", [1, 2, NUM_SLOTS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_those_of_all_ranks_in_their_order(
    size: int, under_way: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    shapes = [(Random(at).randrange(1, 40), Random(-at).randrange(1, 90)) for at in range(64)]

    def make(rank: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(rank)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]

    def run(sums: SharedSums, rank: int) -> list[torch.Tensor]:
        tensors, random, pending = make(rank), Random(rank), []
        for tensor in tensors:
            if len(pending) == under_way:
                pending.pop(0).wait()
            if random.random() < 0.2:
                threading.Event().wait(0.002)  # ranks are not equally fast
            found = sums.start(tensor)
            assert found is not None
            pending.append(found)
        for each in pending:
            each.wait()
        return tensors

    found = on_ranks(tmp_path / "sums", size, run)
    for at, own in enumerate(zip(*(make(rank) for rank in range(size)), strict=True)):
        expected = own[0] + own[1]
        for other in own[2:]:
            expected += other
        for tensors in found:
            assert isinstance(tensors, list)
            assert torch.equal(tensors[at], expected)


def test_a_tensor_larger_than_a_slot_is_left_to_others(tmp_path: Path) -> None:
    SharedSums.create(tmp_path / "sums", 2)
    sums = SharedSums(tmp_path / "sums", 0, 2, lambda: None)
    assert sums.start(torch.zeros(SLOT_BYTES // 4 + 1)) is None
    assert sums.start(torch.zeros(SLOT_BYTES // 4)) is not None


def test_waiting_ends_with_a_rank_that_is_gone(tmp_path: Path) -> None:
    def say_it_is_gone() -> None:
        raise RankLost("gone")

    SharedSums.create(tmp_path / "sums", 2)
    sums = SharedSums(tmp_path / "sums", 0, 2, say_it_is_gone)
    started = sums.start(torch.ones(3))
    assert started is not None
    with pytest.raises(RankLost):
        started.wait()


def test_a_file_that_is_not_whole_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SharedSums(tmp_path / "sums", 1, 2, lambda: None)
    SharedSums.create(tmp_path / "sums", 3)
    with pytest.raises(OSError, match="is not of 2 ranks"):
        SharedSums(tmp_path / "sums", 1, 2, lambda: None)
