"""Rows in fp8 are rounded to the nearest number of the format, on a card as by torch."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.fp8_rows import FP8, FP8_MOST, OP, naive_quantise_to_fp8, quantise_to_fp8
from tests.kernels.devices import CPU, ON_EACH

EVERY = torch.arange(256, dtype=torch.uint8).view(FP8).float()
EVERY = EVERY[EVERY.isfinite()].sort().values
"""Every number of the format."""


@pytest.mark.parametrize("device", ON_EACH)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_every_number_and_every_middle_between_two_is_rounded_alike(device: torch.device, dtype: torch.dtype) -> None:
    """The largest absolute value is 448 in each row, so the scale is 1. Middles go to the even neighbour."""
    middles = (EVERY[1:] + EVERY[:-1]) / 2
    row = torch.cat([EVERY, middles, middles.nextafter(torch.tensor(1e9)), middles.nextafter(torch.tensor(-1e9))])
    x = torch.stack([row, row.flip(0)]).to(dtype).to(device)
    values, scales = OP.run({"x": x})
    expected, expected_scales = naive_quantise_to_fp8(x)
    assert torch.equal(values.float(), expected.float())
    assert torch.equal(scales, expected_scales)
    assert scales.unique().tolist() == [1.0]


@pytest.mark.parametrize("device", ON_EACH)
def test_a_row_that_has_no_numbers_is_nan_and_no_other_row_is(device: torch.device) -> None:
    x = torch.linspace(-3, 3, 4 * 64, device=device).view(4, 64).clone()
    x[0, 3], x[1, 63], x[2] = math.nan, -math.inf, 0.0
    values, scales = OP.run({"x": x})
    products = values.float() * scales
    assert products.isnan().all(dim=1).tolist() == [True, True, False, False]
    assert products[2].abs().sum() == 0
    assert (products[3] - x[3]).abs().max() <= x[3].abs().max() / 16


def test_torchs_operations_do_so_where_no_kernel_runs() -> None:
    values, scales = quantise_to_fp8(torch.tensor([[1.0, -2.0, 448.0], [0.0, 0.0, 0.0]]).bfloat16())
    assert values.dtype == FP8
    assert values.float().tolist() == [[1.0, -2.0, FP8_MOST], [0.0, 0.0, 0.0]]
    assert scales.shape == (2, 1)


@pytest.mark.parametrize("device", ON_EACH)
def test_rows_with_gaps_in_them_are_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="each row must be contiguous"):
        quantise_to_fp8(torch.zeros(2, 8, device=device)[:, ::2])
    with pytest.raises(ValueError, match=r"rows must be \[num_rows, size\], not \[8\]"):
        quantise_to_fp8(torch.zeros(8, device=CPU))
