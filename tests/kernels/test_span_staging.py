"""What is staged arrives whole, however late the device is with its copies and kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import parity
from kernels.attention import Scratch
from kernels.op import is_interpreting
from kernels.rope import rope_table
from kernels.span_placement import place_layers
from kernels.span_placement.host import NUM_BUFFERS, StagingBuffers
from kernels.span_placement.op import OP

CPU = torch.device("cpu")
NUM_LAYERS, NUM_STORED, NUM_SLOTS = 3, 60, 50
TOKEN_BYTES = NUM_LAYERS * 2 * (2 * 16) * 4


@dataclass
class Task:
    """Something that the device has still to do for a buffer."""

    number: int
    is_copy: bool
    run: Callable[[], object]


class LateLane:
    """A `CopyStream` that does what it is asked for only when somebody waits for it, and then no more than that takes.

    Copies go in their order, kernels in theirs; a copy waits for the kernels of its buffer that were asked for before
    it, a kernel for the copy of its buffer.
    """

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self.most_copies = 0

    def wait(self, number: int) -> None:
        """As `CopyStream.wait`."""
        own = [task for task in self._tasks if task.is_copy and task.number == number]
        if own:
            self._finish(own[-1])

    def copy(self, number: int, pinned: Tensor, near: Tensor) -> None:
        """As `CopyStream.copy`."""
        self._add(Task(number, True, lambda: near.copy_(pinned)))

    def run_after_copy(self, number: int, work: Callable[[], object]) -> None:
        """As `CopyStream.behind`."""
        self._add(Task(number, False, work))

    def finish(self) -> None:
        """The device has done it all."""
        while self._tasks:
            self._finish(self._tasks[0])

    def _add(self, task: Task) -> None:
        self._tasks.append(task)
        self.most_copies = max(self.most_copies, sum(each.is_copy for each in self._tasks))

    def _finish(self, task: Task) -> None:
        for earlier in self._tasks[: self._tasks.index(task)]:
            is_same_stream = earlier.is_copy == task.is_copy
            if earlier in self._tasks and (is_same_stream or earlier.number == task.number):
                self._finish(earlier)
        self._tasks.remove(task)
        task.run()


def arguments(num_tokens: int, dtype: torch.dtype, generator: torch.Generator) -> dict[str, Any]:
    """What `place_layers` takes, between any slots, in pools that are NaN."""
    keys, values = torch.randn(2, NUM_LAYERS, NUM_STORED, 2, 16, generator=generator).to(dtype)
    pools = torch.full((2, NUM_LAYERS, NUM_SLOTS, 2, 16), torch.nan, dtype=dtype)
    positions = torch.randint(0, 500, (num_tokens,), generator=generator)
    cos, sin = (part[positions] for part in rope_table(500, 16, 1e4, CPU))
    return {
        "keys": keys.unbind(),
        "values": values.unbind(),
        "source_slots": torch.randint(0, NUM_STORED, (num_tokens,), generator=generator),
        "cos": cos,
        "sin": sin,
        "pool_keys": pools[0].unbind(),
        "pool_values": pools[1].unbind(),
        "target_slots": torch.randperm(NUM_SLOTS, generator=generator)[:num_tokens],
    }


def pools_of(given: dict[str, Any]) -> Tensor:
    return torch.stack([*given["pool_keys"], *given["pool_values"]])


def check(given: dict[str, Any], tokens: int, **options: Any) -> LateLane:
    """Staged by chunks of so many tokens, against the reference."""
    expected = {**given, **{name: [each.clone() for each in given[name]] for name in ("pool_keys", "pool_values")}}
    OP.reference(expected)
    lane = LateLane()
    chunk_bytes = tokens * TOKEN_BYTES * given["keys"][0].itemsize // 4
    StagingBuffers(CPU, lane, chunk_bytes=chunk_bytes, **options).place(**given)
    lane.finish()
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    torch.testing.assert_close(
        pools_of(given), pools_of(expected), rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{text}\n{again}"
    )
    return lane


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(parity.get_run_seed())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_tokens", "tokens"), [(1, 1), (40, 100), (40, 20), (41, 7), (50, 1)])
def test_is_what_a_plain_program_does(
    num_tokens: int, tokens: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    check(arguments(num_tokens, dtype, generator), tokens, placer=OP.reference)


def test_neighbours_are_staged_as_well(generator: torch.Generator) -> None:
    given = arguments(40, torch.float32, generator)
    given["source_slots"] = torch.arange(11, 51)
    check(given, 9, placer=OP.reference)


def test_a_buffer_is_filled_while_the_others_are_on_their_way(generator: torch.Generator) -> None:
    """The host waits for no copy but the one that was made of the buffer before."""
    assert check(arguments(50, torch.float32, generator), 5, placer=OP.reference).most_copies == NUM_BUFFERS


def test_a_token_too_large_for_a_buffer_is_refused(generator: torch.Generator) -> None:
    with pytest.raises(ValueError, match="does not fit a buffer"):
        StagingBuffers(CPU, LateLane(), chunk_bytes=TOKEN_BYTES - 1).place(**arguments(3, torch.float32, generator))


@pytest.mark.interpreted
@pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported")
def test_the_kernel_places_what_is_staged(generator: torch.Generator) -> None:
    check(arguments(41, torch.float16, generator), 7)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("tokens", [3, 100])
def test_a_card_gets_what_a_host_has(tokens: int, generator: torch.Generator) -> None:
    """From host memory as from the card's own."""
    given = arguments(50, torch.bfloat16, generator)
    card = torch.device("cuda")
    near = {
        name: value.to(card) if isinstance(value, Tensor) else [each.to(card) for each in value]
        for name, value in given.items()
    }
    far = {**near, **{name: given[name] for name in ("keys", "values", "source_slots")}}
    far |= {name: [each.clone() for each in near[name]] for name in ("pool_keys", "pool_values")}
    place_layers(**near, scratch=Scratch())
    staged = StagingBuffers(card, chunk_bytes=tokens * TOKEN_BYTES // 2)
    for _ in range(3):  # the buffers are taken again
        staged.place(**far)
    torch.testing.assert_close(pools_of(far), pools_of(near), rtol=0, atol=0, equal_nan=True)
    for each in (*far["pool_keys"], *far["pool_values"]):
        each.fill_(torch.nan)
    place_layers(**far, scratch=Scratch())
    torch.testing.assert_close(pools_of(far), pools_of(near), rtol=0, atol=0, equal_nan=True)
