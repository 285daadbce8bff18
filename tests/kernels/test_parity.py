"""Every kernel computes what its reference does; planted faults and accesses outside of a tensor are found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from kernels import parity
from kernels.op import OP_NAMES, Op, Shape, Variant, load_op
from kernels.parity import BOUNDS, GUARD, GuardedMemory, assert_equal, compute_error_ratio, get_run_seed
from kernels.tune import list_variants
from tests.kernels.devices import CPU, INTERPRETED, ON_CARD
from tests.kernels.planted_faults import FAULTS, Fault, planted

NUM_VARIANTS = 1
"""Besides the wrapper's choice, drawn anew each run, for each shape."""

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
    named = [variant for variant in list_variants(op, [shape]) if having.items() <= variant.items()]
    return Random(get_run_seed()).sample(named, min(num_variants, len(named)))


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.empty_cache()


class TestInterpreted:
    """float32 and float16: the interpreter computes `tl.dot` of bfloat16 wrongly (Triton 3.9)."""

    pytestmark = INTERPRETED

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_a_kernel_computes_what_its_reference_does(self, name: str, number: int, dtype: torch.dtype) -> None:
        op = load_op(name)
        check_variants(op, op.parity_shapes[number], dtype, CPU, NUM_VARIANTS if dtype == torch.float32 else 0)

    @pytest.mark.long
    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_so_does_every_tenth_of_its_variants(self, name: str, number: int) -> None:
        op = load_op(name)
        shape = op.parity_shapes[number]
        check_variants(op, shape, torch.float32, CPU, -(-len(list_variants(op, [shape])) // 10))

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

    pytestmark = ON_CARD

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


DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]
NAN = float("nan")


def beside(tensor: Tensor, offset: int) -> Tensor:
    """The element so far behind a contiguous tensor's first, [1]."""
    return tensor.as_strided((1,), (1,), tensor.storage_offset() + offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [-GUARD, -1, 6, 6 + GUARD - 1])
def test_a_write_beside_a_tensor_is_seen(dtype: torch.dtype, offset: int) -> None:
    memory = GuardedMemory()
    with memory:
        made = torch.empty((2, 3), dtype=dtype)
    made.fill_(1)
    assert memory.is_untouched()
    beside(made, offset).fill_(1)
    assert not memory.is_untouched()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_nan_that_was_read_beside_one_tensor_is_seen_beside_another(dtype: torch.dtype) -> None:
    """What a kernel computes of NaN keeps its bits."""
    memory = GuardedMemory()
    source = memory.copy({"x": torch.ones(6, dtype=dtype)})["x"]
    with memory:
        target = torch.empty(6, dtype=dtype)
    beside(target, 6).copy_(beside(source, 6).float().mul(2).to(dtype))
    assert not memory.is_untouched()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(2, 3),
        lambda: torch.empty_like(torch.ones(2, 3)),
        lambda: torch.ones(1).new_empty((2, 3)),
        lambda: torch.empty_strided((2, 3), (3, 1)),
        lambda: torch.empty((2, 3), dtype=torch.bfloat16),
    ],
)
def test_what_nobody_wrote_is_nan(make: Callable[[], Tensor]) -> None:
    with GuardedMemory():
        made = make()
    assert made.isnan().all()
    assert made.is_contiguous()
    assert made.shape == (2, 3)


def test_what_is_allocated_with_a_value_has_it() -> None:
    memory = GuardedMemory()
    with memory:
        zeros, fives = torch.zeros(4), torch.full((4,), 5)
        whole = torch.empty(4, dtype=torch.int32)
    assert zeros.tolist() == [0.0] * 4
    assert fives.tolist() == [5] * 4
    assert whole.tolist() == [2**31 - 1] * 4
    beside(zeros, 4).fill_(0.0)
    assert not memory.is_untouched()


@dataclass(frozen=True, slots=True)
class Batch:
    starts: Tensor
    size: int


def test_inputs_are_copied_with_what_lies_between_their_rows_and_poison_around_them() -> None:
    wide = torch.arange(20.0).view(4, 5)
    inputs = {"x": wide[:, 1:3], "batch": Batch(torch.tensor([3, 4]), 7), "parts": [wide[0], None], "eps": 1e-6}
    copied = GuardedMemory().copy(inputs)
    x = copied["x"]
    assert torch.equal(x, wide[:, 1:3])
    assert x.stride() == (5, 1)
    assert [float(beside(x, offset)) for offset in (2, 3)] == [3.0, 4.0]
    assert beside(x, -1).isnan()
    assert beside(x, 17).isnan()
    starts = copied["batch"].starts
    assert [int(beside(starts, offset)) for offset in (-1, 0, 1, 2)] == [3, 3, 4, 3]
    assert torch.equal(copied["parts"][0], wide[0])
    assert (copied["parts"][1], copied["eps"], copied["batch"].size) == (None, 1e-6, 7)
    x.fill_(-1)
    assert wide.min() == 0, "the inputs themselves stay as they were"


@pytest.mark.parametrize("offset", [0, 1, 3, 8])
def test_a_copy_is_aligned_as_what_it_is_of(offset: int) -> None:
    part = torch.arange(32, dtype=torch.float16)[offset : offset + 8]
    memory = GuardedMemory()
    copied = memory.copy(part)
    assert torch.equal(copied, part)
    assert copied.data_ptr() % 16 == part.data_ptr() % 16
    beside(copied, -1).fill_(1)
    assert not memory.is_untouched()


def test_nothing_is_copied_as_nothing() -> None:
    memory = GuardedMemory()
    with memory:
        assert torch.empty((0, 4)).shape == (0, 4)
    assert memory.copy(torch.ones(0, 4)).shape == (0, 4)
    assert memory.is_untouched()


@pytest.mark.parametrize(
    ("output", "expected", "error"),
    [
        ([3.0, 4.0], [3.0, 4.0], 0.0),
        ([3.0, 5.0], [3.0, 4.0], 0.2),
        ([3.0, NAN], [3.0, 4.0], inf),
        ([3.0, inf], [3.0, 4.0], inf),
        ([3.0, 4.0], [3.0, NAN], inf),
        ([3.0, NAN], [3.0, NAN], 0.0),
        ([3.0, inf], [3.0, inf], 0.0),
        ([3.0, -inf], [3.0, inf], inf),
        ([3.0, inf], [3.0, NAN], inf),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_error_is_a_ratio_and_what_is_no_number_has_its_place(
    output: list[float], expected: list[float], error: float
) -> None:
    assert compute_error_ratio(torch.tensor(output), torch.tensor(expected, dtype=torch.float64)) == pytest.approx(
        error
    )


def test_whole_numbers_are_equal_or_wrong() -> None:
    assert compute_error_ratio(torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)) == 0.0
    assert compute_error_ratio(torch.tensor([1, 2]), torch.tensor([1, 3])) == inf


def test_a_number_below_what_a_dtype_has_digits_for_may_be_off() -> None:
    least = torch.finfo(torch.float16).smallest_normal
    expected = torch.tensor([least / 1000], dtype=torch.float64)
    assert 0 < compute_error_ratio(expected.half(), expected) < 1e-3
    assert compute_error_ratio(torch.tensor([1.0], dtype=torch.float16), expected * 0) > 1e3


def test_another_shape_is_a_fault_of_the_op() -> None:
    with pytest.raises(AssertionError, match=r"an output is \[1, 2\] and its reference \[2, 1\]"):
        compute_error_ratio(torch.ones(1, 2), torch.ones(2, 1))


# An installation for a CPU has no Triton.


PROGRAM = """
import sys
sys.modules["triton"] = None
import engine.core, kernels.accept, kernels.attention, kernels.paged_attention, kernels.parity, kernels.rms_norm
import kernels.rope, kernels.rope_write, kernels.span_placement, kernels.swiglu, kernels.tune, kernels.winners
from kernels.op import OP_NAMES, load_op
assert [load_op(name).name for name in OP_NAMES] == list(OP_NAMES)
"""


def test_kernels_and_engine_load_without_triton() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
