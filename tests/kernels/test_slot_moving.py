"""What moves within a pool arrives as it was, also where it moves over itself."""

from __future__ import annotations

import pytest
import torch

from kernels import parity
from kernels.op import is_interpreting
from kernels.span_placement import move_layers

NUM_SLOTS = 300


def check(source: list[int], target: list[int], dtype: torch.dtype, row: tuple[int, int], device: str = "cpu") -> None:
    """Against a copy of the whole pool."""
    seed = parity.get_run_seed()
    generator = torch.Generator().manual_seed(seed)
    pool = torch.randn(2, 3, NUM_SLOTS, *row, generator=generator).to(dtype).to(device)
    expected = pool.clone()
    expected[:, :, target] = pool[:, :, source]
    slots = (torch.tensor(each, dtype=torch.int64, device=device) for each in (source, target))
    move_layers(*(part.unbind() for part in pool), *slots)
    assert torch.equal(pool, expected), f"{parity.SEED_VARIABLE}={seed} draws this again"


MOVES = [
    ([7], [0]),
    ([*range(5, 21)], [*range(3, 19)]),
    ([*range(3, 20)], [*range(5, 22)]),
    ([9, 8, 4, 1], [1, 4, 9, 8]),
    ([2, 2, 2], [0, 1, 2]),
    ([*range(30, 286)], [*range(31, 287)]),
    ([*range(1, 299)], [*range(298)]),
    ([], []),
]


@pytest.mark.parametrize(("source", "target"), MOVES)
def test_arrives_as_it_was(source: list[int], target: list[int]) -> None:
    check(source, target, torch.bfloat16, (2, 16))


@pytest.mark.interpreted
@pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported")
class TestInterpreted:
    """The kernel, which the wrapper takes in a process with the interpreter."""

    @pytest.mark.parametrize(("source", "target"), MOVES)
    def test_arrives_as_it_was(self, source: list[int], target: list[int]) -> None:
        check(source, target, torch.float16, (2, 16))

    @pytest.mark.parametrize("row", [(1, 3), (3, 64), (1, 256)])
    def test_rows_of_any_width(self, row: tuple[int, int]) -> None:
        check([5, 4, 3], [4, 3, 2], torch.float32, row)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("row", [(1, 3), (4, 128)])
@pytest.mark.parametrize(("source", "target"), MOVES)
def test_arrives_on_a_card_as_it_was(source: list[int], target: list[int], row: tuple[int, int]) -> None:
    check(source, target, torch.bfloat16, row, "cuda")
