"""Memory with poison around it: every read and write beside a tensor is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import pytest
import torch
from torch import Tensor

from kernels.parity import GUARD, GuardedMemory, compute_error_ratio

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
