"""Attention: torch's fused kernel, few queries and decodes, compared with the naive version, and that with a loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention
from kernels.attention import Scratch, cpu, decode_attention
from kernels.attention.cpu import sdpa_attention
from kernels.attention.types import make_causal_mask
from tests.kernels.naive import naive_causal_attention
from tests.kernels.naive import naive_causal_attention as reference_attention
from tests.kernels.test_attention_blocked import check

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 700, 1300])
@pytest.mark.parametrize("num_tokens", [1, 2, 5, 16])
def test_many_keys(num_tokens: int, window: int | None, dtype: torch.dtype) -> None:
    """The fused kernel goes by 32 rows and 512 keys: several of both, and parts of them, with hidden keys in some."""
    torch.manual_seed(num_tokens)
    for seq_len in (512, 1500):
        check(num_tokens, seq_len, (2, 7, 64), window, dtype, (100,), cpu.few_query_attention)


def test_one_bias_serves_all_lengths_and_none_serves_two_windows() -> None:
    scratch = Scratch()
    for num_tokens, seq_len, window in [(2, 9, None), (2, 600, None), (2, 9, 3), (3, 9, 3), (2, 50, None), (2, 9, 4)]:
        hidden = scratch.get_bias(num_tokens, 3, window, seq_len, torch.float32) < 0
        expected = ~make_causal_mask(num_tokens, seq_len, torch.device("cpu"), window)
        assert torch.equal(hidden, expected.repeat_interleave(3, dim=0))


def test_the_bias_of_a_length_is_part_of_a_longer_ones() -> None:
    scratch = Scratch()
    long = scratch.get_bias(3, 7, None, 500, torch.bfloat16)
    assert scratch.get_bias(3, 7, None, 5, torch.bfloat16).data_ptr() == long[:, -5:].data_ptr()
    assert scratch.get_bias(3, 7, None, 513, torch.bfloat16).shape == (21, 513)


@pytest.mark.parametrize(
    ("num_tokens", "seq_len", "few"),
    [(1, 9, True), (1, 100_000, True), (2, 7000, True), (2, 7200, False), (16, 800, True), (17, 100, False)],
)
def test_few_tokens_go_to_the_fused_kernel(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, seq_len: int, few: bool
) -> None:
    """With 7 heads to a KV head; one token always does."""
    taken = []
    monkeypatch.setattr(cpu, "few_query_attention", lambda *_: taken.append(True))
    monkeypatch.setattr(cpu, "block_attention", lambda *_: taken.append(False))
    keys = torch.empty(1, 2, 8).expand(seq_len, 2, 8)
    attention.causal_attention(torch.empty(num_tokens, 14, 8), [(keys, keys)], Scratch())
    assert taken == [few]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.bfloat16, 6e-3)])
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    heads=st.sampled_from([(1, 1, 8), (2, 7, 64), (3, 3, 64), (4, 1, 16)]),
    seed=st.integers(0, 1 << 30),
)
@example(lengths=[1, 1, 1, 70, 1, 1], heads=(1, 1, 8), seed=63)
def test_each_gets_what_it_gets_alone(
    lengths: list[int], heads: tuple[int, int, int], seed: int, dtype: torch.dtype, bound: float
) -> None:
    num_kv_heads, group, head_dim = heads
    random = torch.Generator().manual_seed(seed)
    most = max(lengths)
    query = torch.randn(len(lengths), num_kv_heads * group, head_dim, generator=random).to(dtype)
    keys, values = torch.randn(2, len(lengths), most, num_kv_heads, head_dim, generator=random).to(dtype)
    hidden = torch.arange(most)[None] >= torch.tensor(lengths)[:, None]
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None, None]
    actual = decode_attention(query, keys, values, bias)
    for at, length in enumerate(lengths):
        own_keys, own_values = (part[at, :length].transpose(0, 1).float() for part in (keys, values))
        expected = naive_causal_attention(query[at : at + 1].float(), own_keys, own_values)
        # Rounding is relative to the sum of the summands' sizes: a mean of 70 values may be near zero.
        scale = naive_causal_attention(query[at : at + 1].float(), own_keys, own_values.abs())
        assert float((actual[at] - expected[0]).norm() / scale.norm()) < bound
