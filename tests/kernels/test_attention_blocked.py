"""Attention in blocks on a CPU equals the written-out one, however the queries are cut and the keys are scattered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.attention import Run, Scratch, causal_attention, cpu
from tests.kernels.naive import naive_causal_attention as reference_attention

BOUND = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
"""Of the error relative to float32's result; the last two are a few roundings of the dtype."""

Attend = Callable[[Tensor, Sequence[Run], Scratch, int | None], Tensor]


class PoisonedScratch(Scratch):
    """Hands out memory that is full of NaN: what is read before it is written shows."""

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return super().take(name, shape, dtype).fill_(torch.nan)


def scattered(keys: Tensor, values: Tensor, cuts: Sequence[int]) -> list[Run]:
    """The sequence in runs that lie far from one another, between NaNs, as in pages of a pool."""
    borders = [0, *sorted(set(cuts)), keys.shape[0]]
    runs = []
    for first, last in pairwise(borders):
        pool = torch.full((2, last - first + 6, *keys.shape[1:]), torch.nan, dtype=keys.dtype)
        pool[0, 3:-3], pool[1, 3:-3] = keys[first:last], values[first:last]
        runs.append((pool[0, 3:-3], pool[1, 3:-3]))
    return runs


def check(
    num_tokens: int,
    seq_len: int,
    heads: tuple[int, int, int],
    window: int | None,
    dtype: torch.dtype,
    cuts: Sequence[int] = (),
    attend: Attend = cpu.block_attention,
) -> None:
    num_kv_heads, group, head_dim = heads
    query = torch.randn(num_tokens, num_kv_heads * group, head_dim).to(dtype)
    keys, values = torch.randn(2, seq_len, num_kv_heads, head_dim).to(dtype)
    actual = attend(query, scattered(keys, values, cuts), PoisonedScratch(), window)
    expected = reference_attention(query.float(), keys.transpose(0, 1).float(), values.transpose(0, 1).float(), window)
    error = float((actual.float() - expected).norm() / expected.norm())
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert error < BOUND[dtype], f"error {error:.2g}"


WAYS: list[Attend] = [causal_attention, cpu.block_attention, cpu.few_query_attention]


@settings(max_examples=200)
@given(data=st.data(), dtype=st.sampled_from(list(BOUND)), attend=st.sampled_from(WAYS), seed=st.integers(0, 1 << 30))
def test_equals_the_reference(data: st.DataObject, dtype: torch.dtype, attend: Attend, seed: int) -> None:
    torch.manual_seed(seed)
    num_tokens = data.draw(st.sampled_from([1, 1, 2, 3, 17, 70]))
    seq_len = num_tokens + data.draw(st.sampled_from([0, 1, 5, 64, 300]))
    heads = data.draw(st.sampled_from([(1, 1, 8), (2, 7, 64), (3, 3, 64), (1, 6, 128), (4, 1, 16)]))
    window = data.draw(st.none() | st.integers(1, seq_len + 3))
    cuts = data.draw(st.lists(st.integers(1, seq_len - 1), max_size=3)) if seq_len > 1 else []
    check(num_tokens, seq_len, heads, window, dtype, cuts, attend)


@pytest.mark.parametrize("window", [None, 7, 130])
@pytest.mark.parametrize("most_scores", [1, 1000, 10_000, 100_000])
def test_the_size_of_a_block_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, most_scores: int, window: int | None
) -> None:
    """From one token and one head a block up to all of them at once."""
    monkeypatch.setattr(cpu, "MAX_SCORES", most_scores)
    monkeypatch.setattr(cpu, "MIN_ROWS", 1)
    torch.manual_seed(most_scores)
    check(65, 200, (3, 2, 16), window, torch.float32, cuts=(64, 150))


def test_a_block_keeps_to_its_size() -> None:
    for num_tokens, seq_len, num_kv_heads, group in [(512, 512, 2, 7), (512, 30_000, 8, 4), (1, 9000, 2, 7)]:
        blocks = list(cpu._split_into_blocks(num_tokens, seq_len, num_kv_heads, group, None))
        for block in blocks:
            heads = block.heads.stop - block.heads.start
            rows = (block.last_token - block.first_token) * group
            fewest = rows <= cpu.MIN_ROWS and heads == 1
            assert fewest or heads * rows * (block.last_key - block.first_key) <= cpu.MAX_SCORES
        covered = {(token, head) for b in blocks for token in range(b.first_token, b.last_token)
                   for head in range(num_kv_heads)[b.heads]}  # fmt: skip
        assert len(covered) == num_tokens * num_kv_heads


@pytest.mark.parametrize(("product", "num_kv_heads"), [("addmm", 1), ("baddbmm", 2)])
def test_bf16_products_are_asked_for_where_they_are_exact_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, product: str, num_kv_heads: int
) -> None:
    """With float32 inputs the same flag would round them; and the caller's own setting is put back."""
    matmul = torch.backends.mkldnn.matmul
    before, seen = matmul.fp32_precision, {}
    real = getattr(torch, product)

    def spy(*args: Tensor, **options: object) -> Tensor:
        seen[dtype] = matmul.fp32_precision
        return real(*args, **options)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch, product, spy)
    for dtype in BOUND:
        check(5, 9, (num_kv_heads, 2, 8), None, dtype)
        assert matmul.fp32_precision == before
    assert seen == {torch.float32: before, torch.float16: before, torch.bfloat16: "bf16"}


def test_the_flag_is_put_back_when_a_product_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    before = torch.backends.mkldnn.matmul.fp32_precision
    monkeypatch.setattr(torch, "addmm", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        check(5, 9, (1, 2, 8), None, torch.bfloat16)
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_scratch_is_kept_from_call_to_call() -> None:
    scratch = Scratch()
    first = scratch.take("scores", (3, 5), torch.float32)
    assert scratch.take("scores", (2, 2, 4), torch.float32).data_ptr() == first.data_ptr()
    assert scratch.take("scores", (1, 5), torch.bfloat16).data_ptr() != first.data_ptr()
    assert scratch.take("other", (3, 5), torch.float32).data_ptr() != first.data_ptr()
    assert scratch.take("scores", (40, 5), torch.float32).shape == (40, 5)
