"""Keys and values in int8: the C++ kernels equal torch's operations, and attention reads what was written."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.attention import KVFormat, causal_attention
from kernels.attention.kv_format import decode_heads, encode_heads, naive_encode_heads
from kernels.attention.native import can_attend
from kernels.native import elementwise
from kernels.parity import BOUNDS
from tests.kernels.naive import naive_causal_attention
from tests.kernels.test_attention import PoisonedScratch, error_ratio, needs_kernel

INT8 = KVFormat(torch.bfloat16, is_int8=True)


def draw(seed: int, *sizes: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    spread = torch.exp2(torch.randint(-30, 20, (*sizes[:-1], 1), generator=random).float())
    return torch.randn(*sizes, generator=random) * spread


@given(seed=st.integers(0, 1 << 30), head_dim=st.sampled_from([2, 8, 62, 64, 128]), is_bf16=st.booleans())
def test_the_kernel_writes_the_bytes_of_torch(seed: int, head_dim: int, is_bf16: bool) -> None:
    heads = draw(seed, 5, 7, head_dim).to(torch.bfloat16 if is_bf16 else torch.float32)
    heads[1, 2] = 0.0
    part = heads[:, 2:5]
    if not elementwise.can_run(part):
        pytest.skip("no kernel here")
    assert torch.equal(elementwise.encode_heads(part), naive_encode_heads(part))


def test_a_number_is_off_by_half_a_step_and_a_row_of_zeros_stays() -> None:
    heads = draw(3, 50, 2, 64)
    heads = heads[(heads.abs().amax(dim=2) < 1e4).all(dim=1) & (heads.abs().amax(dim=2) > 0.01).all(dim=1)]
    assert len(heads) > 5
    heads[0] = 0.0
    found = decode_heads(encode_heads(heads), torch.float32)
    steps = heads.abs().amax(dim=-1, keepdim=True) / 127
    assert ((found - heads).abs() <= 0.501 * steps).all()
    assert not found[0].any()


@pytest.mark.parametrize("fault", [float("nan"), float("inf"), float("-inf")])
def test_a_fault_in_a_head_is_one_in_all_of_its_numbers(fault: float) -> None:
    heads = torch.randn(3, 2, 16)
    heads[1, 0, 5] = fault
    for rows in (INT8.encode(heads), naive_encode_heads(heads)):
        found = decode_heads(rows, torch.float32)
        assert found[1, 0].isnan().all()
        assert found[[0, 2]].isfinite().all()
        assert found[1, 1].isfinite().all()


@pytest.mark.parametrize("activations", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("window", "cap"), [(None, None), (20, None), (20, 2.5)])
@pytest.mark.parametrize("width", [16, 64, 78, 128])
def test_attention_over_int8_is_attention_over_what_it_stands_for(
    activations: torch.dtype, window: int | None, cap: float | None, width: int
) -> None:
    needs_kernel(activations)
    assert can_attend(activations, torch.uint8, width)
    query, keys, values = (
        torch.randn(9, 6, width).to(activations),
        torch.randn(150, 2, width),
        torch.randn(150, 2, width),
    )
    stored = INT8.encode(keys), INT8.encode(values)
    numbers = [INT8.decode(each, torch.float64).transpose(0, 1) for each in stored]
    expected = naive_causal_attention(query.double(), *numbers, window, None, cap)
    for cuts in ((0, 150), (0, 70, 150)):
        runs = [(stored[0][first:last], stored[1][first:last]) for first, last in pairwise(cuts)]
        found = causal_attention(query, runs, PoisonedScratch(), window, None, cap)
        assert error_ratio(found, expected) < BOUNDS[activations]
