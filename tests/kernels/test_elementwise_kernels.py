"""RMSNorm and SwiGLU in Triton round where their references do, in place and on slices of a projection."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import parity
from kernels.op import is_interpreting
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rms_norm.op import naive_rms_norm
from kernels.swiglu import swiglu
from kernels.swiglu.op import naive_swiglu

EPS = 1e-6

MOST_FLIPPED = 0.01
"""Share of numbers whose last bit differs because a float32 did so at a border of rounding: 2^-22 of 2^-11. Where
something is rounded once more or once less, a tenth of all and more do."""

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
in_interpreter = [
    pytest.mark.interpreted,
    pytest.mark.skipif(not is_interpreting(), reason="needs TRITON_INTERPRET=1 before Triton is imported"),
]
on_card = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

on_each_device = pytest.mark.parametrize(
    "device", [pytest.param(CPU, marks=in_interpreter), pytest.param(CUDA, marks=on_card)], ids=str
)
in_each_dtype = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        *(pytest.param(CPU, dtype, marks=in_interpreter) for dtype in (torch.float32, torch.float16)),
        # Triton 3.9's interpreter cuts bfloat16 off where a card rounds.
        *(pytest.param(CUDA, dtype, marks=on_card) for dtype in (torch.float32, torch.float16, torch.bfloat16)),
    ],
    ids=str,
)


@pytest.fixture
def generator() -> torch.Generator:
    """Other numbers each run; a failure says which."""
    return torch.Generator().manual_seed(parity.get_run_seed())


def assert_rounded_alike(actual: Tensor, expected: Tensor) -> None:
    again = f"{parity.SEED_VARIABLE}={parity.get_run_seed()} draws this again"
    actual = actual.cpu()
    assert actual.dtype == expected.dtype, again
    # A bit that flips before the last product, and another in its rounding; float32 has the order of sums besides.
    rtol = 1e-5 if actual.dtype == torch.float32 else 2 * torch.finfo(actual.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6, msg=lambda text: f"{text}\n{again}")
    if actual.dtype != torch.float32:
        assert (actual != expected).float().mean() <= MOST_FLIPPED, again


@in_each_dtype
def test_a_sum_is_normed_as_it_was_rounded(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> None:
    """What is added is a slice of something wider."""
    hidden, wide = (torch.randn(7, size, generator=generator).to(dtype) * 3 for size in (577, 600))
    weight = torch.randn(577, generator=generator).to(dtype)
    stream = hidden.to(device, copy=True)
    normed = add_rms_norm(stream, wide.to(device)[:, 5:582], weight.to(device), EPS)
    expected = hidden + wide[:, 5:582]
    assert torch.equal(stream.cpu(), expected)
    assert_rounded_alike(normed, naive_rms_norm(expected, weight, EPS))


@in_each_dtype
@pytest.mark.parametrize("weight_shape", [(96,), (3, 96)])
def test_heads_are_normed_where_they_lie(
    device: torch.device, dtype: torch.dtype, weight_shape: tuple[int, ...], generator: torch.Generator
) -> None:
    """Of a fused projection some heads, in place, by one weight or each by its own; the other heads stay."""
    fused = torch.randn(11, 5, 96, generator=generator).to(dtype) * 3
    weight = torch.randn(weight_shape, generator=generator).to(dtype)
    there = fused.to(device, copy=True)
    part = there[:, 1:4]
    assert rms_norm(part, weight.to(device), EPS, out=part) is part
    assert_rounded_alike(part, naive_rms_norm(fused[:, 1:4], weight, EPS))
    assert torch.equal(there[:, [0, 4]].cpu(), fused[:, [0, 4]])
    assert_rounded_alike(
        rms_norm(fused.to(device)[:, 1:4], weight.to(device), EPS), naive_rms_norm(fused[:, 1:4], weight, EPS)
    )


@on_each_device
def test_rows_of_nothing_and_no_rows(device: torch.device) -> None:
    weight = torch.ones(8, device=device)
    assert rms_norm(torch.zeros(2, 8, device=device), weight, EPS).tolist() == [[0.0] * 8] * 2
    assert rms_norm(torch.zeros(0, 8, device=device), weight, EPS).shape == (0, 8)
    assert swiglu(torch.zeros(0, 8, device=device)).shape == (0, 4)


@in_each_dtype
def test_a_gate_is_rounded_before_it_multiplies(
    device: torch.device, dtype: torch.dtype, generator: torch.Generator
) -> None:
    gate_up = torch.randn(5, 620, generator=generator).to(dtype) * 3
    assert_rounded_alike(swiglu(gate_up.to(device)[:, 4:-4]), naive_swiglu(gate_up[:, 4:-4]))


@on_each_device
def test_a_gate_that_is_shut_lets_nothing_through(device: torch.device) -> None:
    with np.errstate(over="ignore"):  # the exponential, to infinity
        found = swiglu(torch.tensor([[-200.0, 200.0, 3.0, 3.0]], device=device))
    assert found.tolist() == [[0.0, 600.0]]
