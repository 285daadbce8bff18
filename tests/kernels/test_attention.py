"""Attention on a CPU: the naive version equals a loop, and every fast way equals the naive version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import attention
from kernels.attention import (
    Run,
    RunTable,
    Scratch,
    attend_sequences,
    causal_attention,
    cpu,
    decode_attention,
)
from kernels.attention.fused import few_query_attention, sdpa_attention
from kernels.attention.native import attend as attend_by_kernel
from kernels.attention.native import can_attend
from kernels.attention.runs import make_causal_mask
from tests.kernels.devices import CPU
from tests.kernels.naive import attend_with_mask, naive_causal_attention

# In blocks, however the queries are cut and the keys are scattered.


BOUND = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
"""Of the error relative to float32's result; the last two are a few roundings of the dtype."""

Attend = Callable[..., Tensor]


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
    scale: float | None = None,
    cap: float | None = None,
) -> None:
    num_kv_heads, group, head_dim = heads
    query = torch.randn(num_tokens, num_kv_heads * group, head_dim).to(dtype)
    keys, values = torch.randn(2, seq_len, num_kv_heads, head_dim).to(dtype)
    more = (scale,) if attend is few_query_attention else (scale, cap)
    actual = attend(query, scattered(keys, values, cuts), PoisonedScratch(), window, *more)
    expected = naive_causal_attention(
        query.float(), keys.transpose(0, 1).float(), values.transpose(0, 1).float(), window, scale, cap
    )
    error = float((actual.float() - expected).norm() / expected.norm())
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert error < BOUND[dtype], f"error {error:.2g}"


WAYS: list[Attend] = [causal_attention, cpu.block_attention, few_query_attention]


@settings(max_examples=200)
@given(data=st.data(), dtype=st.sampled_from(list(BOUND)), attend=st.sampled_from(WAYS), seed=st.integers(0, 1 << 30))
def test_equals_the_reference(data: st.DataObject, dtype: torch.dtype, attend: Attend, seed: int) -> None:
    torch.manual_seed(seed)
    num_tokens = data.draw(st.sampled_from([1, 1, 2, 3, 17, 70]))
    seq_len = num_tokens + data.draw(st.sampled_from([0, 1, 5, 64, 300]))
    heads = data.draw(st.sampled_from([(1, 1, 8), (2, 7, 64), (3, 3, 64), (1, 6, 128), (4, 1, 16)]))
    window = data.draw(st.none() | st.integers(1, seq_len + 3))
    cuts = data.draw(st.lists(st.integers(1, seq_len - 1), max_size=3)) if seq_len > 1 else []
    scale = data.draw(st.sampled_from([None, 0.7 * heads[2] ** -0.5]))
    cap = data.draw(st.sampled_from([None, None, 1.5]))
    check(
        num_tokens, seq_len, heads, window, dtype, cuts, attend, scale, None if attend is few_query_attention else cap
    )


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


# The kernel in C++.


def needs_kernel(dtype: torch.dtype) -> None:
    if not can_attend(dtype, torch.bfloat16, 64):
        pytest.skip(f"there is no kernel for {dtype} here: it needs Linux and g++, and AVX512-BF16 for bf16")


def in_pages(keys: Tensor, values: Tensor, cuts: Sequence[int], by_head: bool) -> list[Run]:
    """As `scattered`; with the heads far apart, as in a contiguous cache, or side by side, as in a pool."""
    runs = scattered(keys, values, cuts)
    if not by_head:
        return runs
    return [tuple(part.transpose(0, 1).contiguous().transpose(0, 1) for part in run) for run in runs]  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=150)
@given(data=st.data(), by_head=st.booleans(), seed=st.integers(0, 1 << 30))
def test_the_kernel_equals_the_reference_and_a_token_alone_has_the_same_bits(
    data: st.DataObject, dtype: torch.dtype, by_head: bool, seed: int
) -> None:
    needs_kernel(dtype)
    torch.manual_seed(seed)
    num_kv_heads, group, width = data.draw(
        st.sampled_from([(1, 1, 2), (2, 7, 64), (3, 3, 64), (1, 6, 128), (4, 1, 16), (1, 2, 80), (1, 3, 256)])
    )
    seq_len = data.draw(st.sampled_from([1, 2, 63, 64, 65, 130, 400]))
    positions = sorted(data.draw(st.sets(st.integers(0, seq_len - 1), min_size=1, max_size=40)))
    end = positions[-1] + 1
    window = data.draw(st.none() | st.integers(1, seq_len + 3))
    cuts = data.draw(st.lists(st.integers(1, end - 1), max_size=3)) if end > 1 else []
    query = torch.randn(len(positions), num_kv_heads * group, width).to(dtype)
    keys, values = torch.randn(2, end, num_kv_heads, width).bfloat16()
    runs = in_pages(keys, values, cuts, by_head)
    scale, cap = data.draw(st.sampled_from([None, 0.7 * width**-0.5])), data.draw(st.sampled_from([None, 1.5]))
    scoring = scale, cap
    actual = attend_by_kernel(query, positions, runs, end, window, *scoring)
    mask = make_causal_mask(end, end, CPU, window)[positions]
    wide, wide_keys, wide_values = query.double(), keys.double().transpose(0, 1), values.double().transpose(0, 1)
    expected = attend_with_mask(wide, wide_keys, wide_values, mask, *scoring)
    # Few numbers may all be near zero, where values cancel each other; the roundings of the shares do not.
    scale = expected if actual.numel() >= 64 else attend_with_mask(wide, wide_keys, wide_values.abs(), mask, *scoring)
    error = float((actual.double() - expected).norm() / scale.norm())
    assert (actual.dtype, actual.shape) == (dtype, query.shape)
    assert error < BOUND[dtype], f"error {error:.2g}"
    row = data.draw(st.integers(0, len(positions) - 1))
    first = 0 if window is None else max(0, positions[row] + 1 - window)
    seen = slice(first, positions[row] + 1)
    own = [(keys[seen], values[seen])]
    alone = attend_by_kernel(query[row, None], [positions[row]], own, seen.stop, window, *scoring)
    assert torch.equal(alone[0], actual[row]), "whatever is beside it, wherever its keys lie, and if a window cuts them"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_hides_no_fault_and_overflows_nowhere(dtype: torch.dtype) -> None:
    """Of its own keys and values; those of another head stay out of it."""
    needs_kernel(dtype)
    query, (keys, values) = torch.randn(3, 4, 64).to(dtype), torch.randn(2, 70, 2, 64).bfloat16()
    large = attend_by_kernel(100.0 * query, [5, 68, 69], [(100.0 * keys, values)], 70, None)
    assert large.isfinite().all()
    for place in (keys, values):
        kept = place[66, 1, 3].clone()
        place[66, 1, 3] = torch.nan
        found = attend_by_kernel(query, [5, 68, 69], [(keys, values)], 70, None)
        assert found[:, :2].isfinite().all()
        assert found[0].isfinite().all(), "it does not see that block"
        assert found[1:, 2:].isnan().any(dim=-1).all()
        place[66, 1, 3] = kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 70])
def test_sequences_attended_to_together_have_the_bits_of_each_alone(dtype: torch.dtype, window: int | None) -> None:
    if not can_attend(dtype, torch.bfloat16, 16):
        pytest.skip("no kernel here")
    pool = torch.full((2, 1000, 2, 16), torch.nan, dtype=torch.bfloat16)
    slots = [[(0, 90)], [(100, 132), (200, 264), (132, 140)], [(300, 301)], [(400, 500), (600, 700)]]
    for own in slots:
        for first, last in own:
            pool[:, first:last] = torch.randn(2, last - first, 2, 16).bfloat16()
    positions = [range(80, 90), range(103, 104), range(1), range(0, 200, 3)]
    if window:  # the second one lacks what is before its window, the last one's positions have gaps
        positions[1] = range(503, 504)
        positions[3] = range(150, 200)
    first_positions = [
        own[-1] + 1 - sum(last - first for first, last in each) for own, each in zip(positions, slots, strict=True)
    ]
    first_positions[3] = 0
    ends = list(accumulate(map(len, positions)))
    ranges = [(end - len(own), end) for end, own in zip(ends, positions, strict=True)]
    query = torch.randn(ends[-1], 6, 16).to(dtype)
    table = RunTable(slots, first_positions, ranges, [each for own in positions for each in own])
    table.point_at(*pool)
    found = attend_sequences(query, table, 2, window, 0.3, 2.0)
    for own, at, each, first in zip(positions, ranges, slots, first_positions, strict=True):
        runs = [(pool[0, start:end], pool[1, start:end]) for start, end in each]
        last = first + sum(end - start for start, end in each)
        assert torch.equal(found[slice(*at)], attend_by_kernel(query[slice(*at)], own, runs, last, window, 0.3, 2.0))
    assert found.isfinite().all()


def test_other_dtypes_and_widths_are_left_to_torch() -> None:
    assert not can_attend(torch.float32, torch.float32, 64)
    assert not can_attend(torch.float16, torch.bfloat16, 64)
    assert not can_attend(torch.float32, torch.bfloat16, 7)
    assert not can_attend(torch.float32, torch.bfloat16, 258)


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("num_tokens", [1, 3, 60])
def test_without_the_kernel_wide_queries_attend_to_bf16(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, window: int | None
) -> None:
    monkeypatch.setattr(attention, "can_attend", lambda *_: False)
    query, (keys, values) = torch.randn(num_tokens, 4, 64), torch.randn(2, 90, 2, 64).bfloat16()
    expected = naive_causal_attention(query, keys.float().transpose(0, 1), values.float().transpose(0, 1), window)
    for cuts in ((), (40,)):
        actual = causal_attention(query, scattered(keys, values, cuts), PoisonedScratch(), window)
        assert error_ratio(actual, expected) < BOUND[torch.float32]
    bias = torch.zeros(1, 1, 1, 90, dtype=torch.bfloat16)
    last = decode_attention(query[-1:], keys[None], values[None], bias)
    everything = naive_causal_attention(query[-1:], keys.float().transpose(0, 1), values.float().transpose(0, 1))
    assert error_ratio(last, everything) < BOUND[torch.float32]


# Torch's fused kernel, few queries, decodes.


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
    assert error_ratio(naive_causal_attention(query, keys, values, window), expected) < 1e-6


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("window", [1, 5, 64, 1000])
@pytest.mark.parametrize("shape", SHAPES)
def test_with_a_window_the_keys_before_it_need_not_be_given(
    shape: tuple[int, ...], window: int, dtype: torch.dtype, bound: float
) -> None:
    query, keys, values = make_inputs(*shape, dtype=dtype)
    expected = naive_causal_attention(query, keys, values, window)
    first_key = max(0, keys.shape[1] - len(query) + 1 - window)
    keys, values = keys[:, first_key:], values[:, first_key:]
    assert error_ratio(sdpa_attention(query, keys, values, window), expected) < bound
    for scoring in ((0.2, None), (None, 1.5), (0.2, 1.5)):
        expected = naive_causal_attention(query.double(), keys.double(), values.double(), window, *scoring)
        assert error_ratio(sdpa_attention(query, keys, values, window, *scoring), expected) < bound


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 6e-3)])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_fused_kernel_equals_the_reference(shape: tuple[int, ...], dtype: torch.dtype, bound: float) -> None:
    query, keys, values = make_inputs(*shape, dtype=dtype)
    fused = sdpa_attention(query, keys, values)
    assert fused.shape == query.shape
    assert fused.dtype == dtype
    assert error_ratio(fused, naive_causal_attention(query, keys, values)) < bound


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
        check(num_tokens, seq_len, (2, 7, 64), window, dtype, (100,), few_query_attention)


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
    monkeypatch.setattr(attention, "few_query_attention", lambda *_: taken.append(True))
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
