"""A row is read in float32, value for value, from any dtype and wherever it lies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.sampling.logits import read_row


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_value_of_a_half_type_is_read_as_torch_reads_it(dtype: torch.dtype) -> None:
    values = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)[None]
    assert np.array_equal(read_row(values, 0), values[0].float().numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_row_of_a_strided_tensor_is_its_own(dtype: torch.dtype) -> None:
    logits = torch.arange(60.0).view(6, 10).to(dtype)
    row = read_row(logits[::2, 1::3], 1)
    assert row.dtype == np.float32
    assert row.tolist() == [21, 24, 27]
