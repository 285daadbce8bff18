"""The likeliest tokens of many rows: as torch.argmax says, and a fault where a row holds no numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import NumericFault
from engine.sampling import greedy
from engine.sampling.greedy import _at_once, _by_rows

WAYS = [_by_rows, _at_once]
"""Of the CPU and of a device; each works on both."""
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 99), st.sampled_from(DTYPES))
def test_the_first_of_the_likeliest_is_chosen(
    way: Callable[[Tensor], list[int]], num_rows: int, vocab_size: int, seed: int, dtype: torch.dtype
) -> None:
    values = torch.randint(-3, 3, (num_rows, vocab_size), generator=torch.Generator().manual_seed(seed))
    expected = [max(range(vocab_size), key=lambda token_id: (row[token_id], -token_id)) for row in values.tolist()]
    assert way(values.to(dtype)) == expected


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 500, 999])
def test_a_row_that_holds_no_numbers_is_named(
    way: Callable[[Tensor], list[int]], dtype: torch.dtype, bad: float, place: int
) -> None:
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[2, place] = logits[3, 0] = bad
    with pytest.raises(NumericFault, match="row 2") as fault:
        way(logits)
    assert fault.value.row == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_row_without_any_possible_token_is_named(way: Callable[[Tensor], list[int]]) -> None:
    logits = torch.zeros(3, 4)
    logits[1] = -torch.inf
    with pytest.raises(NumericFault, match="all -inf") as fault:
        way(logits)
    assert fault.value.row == 1


def test_rows_of_a_wider_tensor_are_read_where_they_lie() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    assert greedy(logits[::2, 5:40]) == logits[::2, 5:40].argmax(dim=-1).tolist()
