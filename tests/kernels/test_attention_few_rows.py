"""Attention of a few queries equals the written-out one, over many keys too, and is taken where it is the quicker."""

from __future__ import annotations

import pytest
import torch

from kernels import attention
from kernels.attention import Scratch, cpu
from kernels.attention.types import make_causal_mask
from tests.kernels.test_attention_blocked import check


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
