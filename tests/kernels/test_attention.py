"""Attention: torch's fused kernel against the written-out one, and that against a loop without any mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.attention.cpu import sdpa_attention
from kernels.attention.types import make_causal_mask
from tests.kernels.naive import naive_causal_attention as reference_attention

CPU = torch.device("cpu")
SHAPES = [  # num_tokens, seq_len, num_kv_heads, group, head_dim
    (1, 1, 1, 1, 64),
    (1, 1, 2, 7, 64),
    (1, 300, 3, 3, 64),
    (1, 129, 2, 6, 128),
    (2, 2, 1, 2, 64),
    (2, 65, 2, 7, 64),
    (33, 33, 2, 6, 128),
    (33, 97, 3, 1, 64),
    (65, 130, 3, 3, 64),
    (5, 7, 1, 1, 128),
]


def make_inputs(num_tokens: int, seq_len: int, num_kv_heads: int, group: int, head_dim: int, dtype: torch.dtype):
    """Queries, and keys and values as views of longer memory that holds NaN behind them, as a KV cache might."""
    random = torch.Generator().manual_seed(num_tokens * 1000 + seq_len)
    query = torch.randn(num_tokens, num_kv_heads * group, head_dim, generator=random)
    memory = torch.randn(2, num_kv_heads, seq_len + 9, head_dim, generator=random)
    memory[:, :, seq_len:] = torch.nan
    keys, values = memory.to(dtype)[:, :, :seq_len]
    return query.to(dtype), keys, values


def attend_by_loop(query: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """Softmax attention of one query row and one head at a time, in float64: what a query may see is a slice."""
    num_tokens, num_heads, head_dim = query.shape
    seq_len, group = keys.shape[1], num_heads // keys.shape[0]
    out = torch.empty(query.shape, dtype=torch.float64)
    for row in range(num_tokens):
        end = seq_len - num_tokens + row + 1
        start = 0 if window is None else max(0, end - window)
        for head in range(num_heads):
            seen_keys, seen_values = (part[head // group, start:end].double() for part in (keys, values))
            scores = seen_keys @ query[row, head].double() / head_dim**0.5
            out[row, head] = (scores - scores.max()).softmax(dim=0) @ seen_values
    return out


def error_ratio(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the error, relative to that of what is expected."""
    return float((actual.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("window", [None, 1, 5, 64, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_softmax_attention_over_what_each_query_may_see(
    shape: tuple[int, ...], window: int | None
) -> None:
    query, keys, values = make_inputs(*shape, dtype=torch.float32)
    expected = attend_by_loop(query, keys, values, window)
    assert error_ratio(reference_attention(query, keys, values, window), expected) < 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("window", [1, 5, 64, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_window_the_keys_before_it_need_not_be_given(
    shape: tuple[int, ...], window: int, dtype: torch.dtype, bound: float
) -> None:
    query, keys, values = make_inputs(*shape, dtype=dtype)
    expected = reference_attention(query, keys, values, window)
    first_key = max(0, keys.shape[1] - len(query) + 1 - window)
    keys, values = keys[:, first_key:], values[:, first_key:]
    assert error_ratio(sdpa_attention(query, keys, values, window), expected) < bound


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_fused_kernel_equals_the_reference(shape: tuple[int, ...], dtype: torch.dtype, bound: float) -> None:
    query, keys, values = make_inputs(*shape, dtype=dtype)
    fused = sdpa_attention(query, keys, values)
    assert fused.shape == query.shape
    assert fused.dtype == dtype
    assert error_ratio(fused, reference_attention(query, keys, values)) < bound


def test_a_single_query_needs_no_mask_because_it_sees_every_key() -> None:
    query, keys, values = make_inputs(1, 40, 2, 7, 64, dtype=torch.float32)
    masked = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=make_causal_mask(1, 40, CPU), enable_gqa=True
    )
    torch.testing.assert_close(sdpa_attention(query, keys, values), masked[0].transpose(0, 1))


def test_the_mask_is_aligned_to_the_bottom_right() -> None:
    assert make_causal_mask(2, 4, CPU).tolist() == [[True, True, True, False], [True, True, True, True]]


def test_a_window_counts_the_query_itself() -> None:
    assert make_causal_mask(2, 4, CPU, window=2).tolist() == [[False, True, True, False], [False, False, True, True]]
