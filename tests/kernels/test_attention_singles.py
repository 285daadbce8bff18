"""One query in each of many sequences equals the written-out attention of each alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.attention import decode_attention
from tests.kernels.naive import naive_causal_attention


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
