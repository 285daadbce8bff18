"""The tuner on a card: its timer, variants that cannot run, and a whole search."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from kernels.op import Shape, Variant, load_op
from kernels.parity import get_run_seed
from kernels.tune import CudaTimer, classify_faults, make_search
from kernels.tuner.search import Budget, LaunchFailed, Target, group_targets
from kernels.tuner.store import Store, Winners, describe_card
from tests.kernels.devices import ON_CARD

pytestmark = ON_CARD

SHAPE: Shape = {"num_tokens": 256, "ffn_size": 8960}


@pytest.fixture
def card() -> Iterator[torch.device]:
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()


def swiglu(*shapes: Shape) -> Target:
    (found,) = group_targets(load_op("swiglu"), torch.bfloat16, shapes or (SHAPE,))
    return found


def test_times_lie_between_the_floor_and_a_second(card: torch.device) -> None:
    target = swiglu(SHAPE, SHAPE | {"num_tokens": 200})
    timer = CudaTimer(target, card, describe_card(card).l2_bytes, get_run_seed())
    variant = target.op.default(SHAPE)
    timer.prepare(variant)
    samples = [timer.sample(variant) for _ in range(5)]
    floors = [target.op.cost(shape, target.dtype).floor_s(2e13, 1e16) for shape in target.shapes]  # beyond any card
    for times in samples:
        assert all(floor < each < 1.0 for each, floor in zip(times, floors, strict=True))
    timer.release(variant)


def test_a_variant_that_asks_for_too_much_does_not_launch_and_the_next_one_does(card: torch.device) -> None:
    target = swiglu()
    timer = CudaTimer(target, card, 0, get_run_seed())
    with pytest.raises(LaunchFailed):
        timer.prepare({"BLOCK": 1 << 21, "PER_PROCESSOR": 0, "num_warps": 4, "num_stages": 1})
    timer.prepare(target.op.default(SHAPE))


def test_too_little_memory_is_not_the_variants_fault(card: torch.device) -> None:
    with pytest.raises(MemoryError), classify_faults():
        torch.empty(1 << 50, dtype=torch.uint8, device=card)


def test_an_op_that_waits_for_the_device_is_timed_without_a_graph(card: torch.device) -> None:
    class Waiting:
        """The op, and a look at its output."""

        def __getattr__(self, name: str) -> object:
            return getattr(load_op("swiglu"), name)

        def run(self, inputs: Mapping[str, torch.Tensor], variant: Variant | None = None) -> tuple[torch.Tensor, ...]:
            outputs = load_op("swiglu").run(inputs, variant)
            assert outputs[0].sum().isfinite().item()
            return outputs

    target = Target(Waiting(), torch.bfloat16, "waiting", (SHAPE,))  # type: ignore[arg-type]
    timer = CudaTimer(target, card, 0, get_run_seed())
    timer.prepare(target.op.default(SHAPE))
    (seconds,) = timer.sample(target.op.default(SHAPE))
    assert 0 < seconds < 1.0


def test_a_search_finds_a_right_variant_that_the_wrapper_takes(card: torch.device, tmp_path: Path) -> None:
    said: list[str] = []
    budget = Budget(time.monotonic, time.monotonic(), 120)
    winner = make_search(card, swiglu(), tmp_path, budget, said.append).run()
    assert winner.is_complete, said
    assert winner.default is not None
    assert winner.best.score <= winner.default.score
    name = torch.cuda.get_device_name(card)
    assert Store(tmp_path, name).read_winners() == {winner.key: winner}
    winners = Winners(tmp_path, name, winner.versions.triton)
    assert winners.get_variant(load_op("swiglu"), SHAPE, torch.bfloat16) == winner.best.variant
