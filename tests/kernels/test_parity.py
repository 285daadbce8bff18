"""Every kernel of the catalogue computes what its reference does; a fault planted in a copy of one is found.

Inputs are drawn anew each run. `KERNELS_SEED=...`, which a failure prints, draws the same ones again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType

import pytest
import torch

from kernels import parity
from kernels.op import OP_NAMES, Op, Shape, Variant, is_interpreting, load_op
from kernels.parity import BOUNDS, assert_equal, get_run_seed
from kernels.tuner.search import list_variants
from tests.kernels.planted_faults import FAULTS, Fault, planted

CPU = torch.device("cpu")
NUM_VARIANTS = 1
"""Besides the wrapper's choice, drawn anew each run, for each shape."""

interpreted = [
    pytest.mark.interpreted,
    pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1; make test-kernels sets it"),
]
on_card = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CASES = [
    pytest.param(name, number, id=f"{name}-{'-'.join(map(str, shape.values()))}")
    for name in OP_NAMES
    for number, shape in enumerate(load_op(name).parity_shapes)
]


def check_variants(op: Op, shape: Shape, dtype: torch.dtype, device: torch.device, num_variants: int) -> None:
    assert_equal(op, shape, dtype, device)
    for variant in drawn_variants(op, shape, num_variants):
        assert_equal(op, shape, dtype, device, variant)


def drawn_variants(
    op: Op, shape: Shape, num_variants: int, having: Mapping[str, int] = MappingProxyType({})
) -> list[Variant]:
    """Some of those that are declared and can run the shape, with certain constants where these are named."""
    named = [variant for variant in list_variants(op.space) if having.items() <= variant.items()]
    valid = [variant for variant in named if op.is_valid(variant, shape)]
    return Random(get_run_seed()).sample(valid, min(num_variants, len(valid)))


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()


class TestInterpreted:
    """float32 and float16: the interpreter computes `tl.dot` of bfloat16 wrongly (Triton 3.9)."""

    pytestmark = interpreted

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_a_kernel_computes_what_its_reference_does(self, name: str, number: int, dtype: torch.dtype) -> None:
        op = load_op(name)
        check_variants(op, op.parity_shapes[number], dtype, CPU, NUM_VARIANTS if dtype == torch.float32 else 0)

    @pytest.mark.long
    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_so_does_every_tenth_of_its_variants(self, name: str, number: int) -> None:
        op = load_op(name)
        check_variants(op, op.parity_shapes[number], torch.float32, CPU, len(list_variants(op.space)) // 10)

    @pytest.mark.parametrize("fault", FAULTS, ids=str)
    def test_a_planted_fault_is_found(self, fault: Fault, tmp_path: Path) -> None:
        """By the wrapper's choice, or by one of the variants that are declared."""
        op = load_op(fault.op)
        with planted(fault, tmp_path):
            shapes = [shape for shape in op.parity_shapes if fault.shows_at.items() <= shape.items()]
            assert any(self._finds(op, shape, variant) for shape in shapes for variant in _tried(op, shape, fault))
        check_variants(op, op.parity_shapes[0], torch.float32, CPU, 0)  # the copy is gone again

    @pytest.mark.parametrize("name", OP_NAMES)
    def test_every_op_has_faults_planted(self, name: str) -> None:
        assert len([fault for fault in FAULTS if fault.op == name]) >= 4

    @staticmethod
    def _finds(op: Op, shape: Shape, variant: Variant | None) -> bool:
        return not parity.measure_error(op, shape, torch.float32, CPU, variant) <= BOUNDS[torch.float32]


def _tried(op: Op, shape: Shape, fault: Fault) -> list[Variant | None]:
    return [None, *drawn_variants(op, shape, NUM_VARIANTS, fault.shows_in)]


class TestOnCard:
    """bfloat16, the service's shapes, and the compiler instead of the interpreter."""

    pytestmark = on_card

    @pytest.mark.parametrize("dtype", BOUNDS, ids=lambda dtype: str(dtype).removeprefix("torch."))
    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_a_kernel_computes_what_its_reference_does(
        self, name: str, number: int, dtype: torch.dtype, cuda: torch.device
    ) -> None:
        op = load_op(name)
        check_variants(op, op.parity_shapes[number], dtype, cuda, NUM_VARIANTS)

    @pytest.mark.parametrize("name", OP_NAMES)
    def test_so_it_does_at_the_shapes_of_the_service(self, name: str, cuda: torch.device) -> None:
        """In bfloat16, by the wrapper's choice; the reference of the longest ones fits into no card."""
        op = load_op(name)
        for shape in op.benchmark_shapes:
            try:
                assert_equal(op, shape, torch.bfloat16, cuda)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
