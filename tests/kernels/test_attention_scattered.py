"""Attention at any positions equals the naive version, and each query sees exactly the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.attention import Run, attention_at_positions, causal_attention, cpu
from kernels.attention.cpu import Block
from kernels.attention.fused import sdpa_attention_at_positions
from kernels.attention.runs import make_causal_mask
from tests.kernels.naive import naive_attention_at_positions as reference_attention
from tests.kernels.test_attention import BOUND, PoisonedScratch
from tests.kernels.test_attention import scattered as in_runs

HEADS = [(1, 1, 64), (2, 7, 64), (3, 2, 64), (2, 6, 128), (1, 6, 64)]
"""KV heads, queries to each, and their width."""


def make_inputs(num_tokens: int, seq_len: int, heads: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """Queries, and keys and values [seq_len, num_kv_heads, head_dim]."""
    num_kv_heads, group, head_dim = heads
    query = torch.randn(num_tokens, num_kv_heads * group, head_dim)
    return [each.to(dtype) for each in (query, *torch.randn(2, seq_len, num_kv_heads, head_dim))]


def check(
    positions: Sequence[int],
    seq_len: int,
    heads: tuple[int, int, int] = (2, 7, 64),
    dtype: torch.dtype = torch.float32,
    cuts: Sequence[int] = (),
    scoring: tuple[int | None, float | None, float | None] = (None, None, None),
) -> None:
    """Of float64's result; all memory that a query does not own or see may be NaN behind the last position."""
    query, keys, values = make_inputs(len(positions), seq_len, heads, dtype)
    at = torch.tensor(positions)
    wide = (part.double().transpose(0, 1) for part in (keys, values))
    expected = reference_attention(query.double(), at, *wide, *scoring)
    for part in (keys, values):
        part[positions[-1] + 1 :] = torch.nan
    actual = attention_at_positions(query, at, in_runs(keys, values, cuts), PoisonedScratch(), *scoring)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    error = float((actual.double() - expected).norm() / expected.norm())
    assert error < BOUND[dtype], f"error {error:.2g}"


def test_the_reference_gives_each_query_what_it_gets_alone_at_the_end_of_its_keys() -> None:
    query, keys, values = make_inputs(3, 9, (2, 3, 16), torch.float64)
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    found = reference_attention(query, torch.tensor([0, 4, 7]), keys, values)
    for row, position in enumerate([0, 4, 7]):
        scores = torch.einsum("khd,ksd->khs", query[row].view(2, 3, 16), keys[:, : position + 1]) / 4
        alone = torch.einsum("khs,ksd->khd", scores.softmax(dim=-1), values[:, : position + 1])
        torch.testing.assert_close(found[row].view(2, 3, 16), alone)


@settings(max_examples=50)
@given(data=st.data(), dtype=st.sampled_from(list(BOUND)), seed=st.integers(0, 1 << 30))
def test_any_positions(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    seq_len = data.draw(st.integers(1, 300))
    positions = sorted(data.draw(st.sets(st.integers(0, seq_len - 1), min_size=1, max_size=70)))
    cuts = data.draw(st.lists(st.integers(1, seq_len - 1), max_size=3)) if seq_len > 1 else []
    heads = data.draw(st.sampled_from(HEADS))
    scale, cap = st.sampled_from([None, 0.7 * heads[2] ** -0.5]), st.sampled_from([None, 1.5])
    scoring = data.draw(st.tuples(st.none() | st.integers(1, seq_len + 3), scale, cap))
    check(positions, seq_len, heads, dtype, cuts, scoring)


@pytest.mark.parametrize("heads", [(2, 7, 64), (2, 6, 128)])
@pytest.mark.parametrize(
    "pieces",
    [[(5, 40), (300, 420), (900, 905)], [(0, 1), (1199, 1200)], [(3, 203), (204, 404), (405, 605)], [(700, 701)]],
)
def test_pieces_far_apart_and_near(pieces: list[tuple[int, int]], heads: tuple[int, int, int]) -> None:
    torch.manual_seed(len(pieces))
    check([position for piece in pieces for position in range(*piece)], 1200, heads, cuts=(64, 500))


@pytest.mark.parametrize("most_unseen", [0, 1000, 1 << 30])
@pytest.mark.parametrize("most_scores", [1, 1000, 100_000])
def test_where_blocks_are_cut_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, most_scores: int, most_unseen: int
) -> None:
    """From one token and one head a block up to all of them at once, across all gaps, and nothing for another way."""
    monkeypatch.setattr(cpu, "is_fused_faster", lambda *_: False)
    monkeypatch.setattr(cpu, "MAX_SCORES", most_scores)
    monkeypatch.setattr(cpu, "MIN_ROWS", 1)
    monkeypatch.setattr(cpu, "MAX_HIDDEN_SCORES", most_unseen)
    torch.manual_seed(most_scores)
    check(sorted(torch.randperm(300)[:40].tolist()), 300, (3, 2, 16))


@pytest.mark.parametrize("dtype", list(BOUND))
@pytest.mark.parametrize(("num_tokens", "seq_len"), [(1, 1), (1, 90), (90, 90), (30, 90), (5, 700)])
def test_the_last_tokens_get_the_bits_of_causal_attention(num_tokens: int, seq_len: int, dtype: torch.dtype) -> None:
    """Also where further keys are given behind them, and where they are all tokens."""
    query, keys, values = make_inputs(num_tokens, seq_len, (2, 7, 64), dtype)
    expected = causal_attention(query, in_runs(keys, values, (4,)), PoisonedScratch())
    behind = torch.full((2, 9, *keys.shape[1:]), torch.nan, dtype=dtype)
    runs = [*in_runs(keys, values, (4,)), (behind[0], behind[1])]
    positions = torch.arange(seq_len - num_tokens, seq_len)
    assert torch.equal(attention_at_positions(query, positions, runs, PoisonedScratch()), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_neighbours_in_blocks_of_positions_get_the_bits_of_blocks_without(dtype: torch.dtype) -> None:
    query, keys, values = make_inputs(200, 700, (2, 7, 64), dtype)
    runs = in_runs(keys, values, (64,))
    found = cpu.attention_at_positions(query, range(500, 700), runs, PoisonedScratch())
    assert torch.equal(found, cpu.block_attention(query, runs, PoisonedScratch()))


def test_a_mask_aligned_to_the_bottom_right_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one of a causal pass: wrong wherever the tokens are no neighbours."""

    def planted(scores: Tensor, block: Block, positions: Tensor, window: int | None) -> None:
        mask = make_causal_mask(scores.shape[1], scores.shape[3], scores.device)
        scores.masked_fill_(~mask[None, :, None, :], float("-inf"))

    monkeypatch.setattr(cpu, "MAX_HIDDEN_SCORES", 1 << 30)  # blocks across gaps, where the mask decides
    torch.manual_seed(0)
    positions = [3, 4, 5, 17, 30, 31, 34, 36, 39]
    check(positions, 40)
    monkeypatch.setattr(cpu, "_mask_by_position", planted)
    with pytest.raises(AssertionError, match="error"):
        check(positions, 40)


def test_a_key_behind_a_block_is_not_read() -> None:
    """Of NaN it would spoil even those that do not see it: 0 * NaN is NaN."""
    positions = [*range(10, 60), *range(5000, 5050)]
    query, keys, values = make_inputs(100, 5050, (1, 7, 64), torch.bfloat16)
    keys[60:5000] = values[60:5000] = torch.nan
    found = attention_at_positions(query, torch.tensor(positions), [(keys, values)], PoisonedScratch())
    assert found[:50].isfinite().all()
    assert found[50:].isnan().all()


def test_pieces_cover_each_token_once_and_waste_little() -> None:
    torch.manual_seed(1)
    for positions, group in [
        (sorted(torch.randperm(9000)[:700].tolist()), 7),
        ([*range(100), *range(6000, 6120)], 6),
        ([5], 1),
    ]:
        pieces = list(cpu._split_at_gaps(positions, 0, len(positions), group))
        assert [token for piece in pieces for token in range(*piece)] == list(range(len(positions)))
        for first, last in pieces:
            own = positions[first:last]
            assert len(own) <= cpu.get_max_block_tokens(positions[-1] + 1, group)
            in_gaps = sum(tokens * (after - before - 1) for tokens, (before, after) in enumerate(pairwise(own), 1))
            assert in_gaps * group <= cpu.MAX_HIDDEN_SCORES


def test_a_few_neighbours_go_to_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of them alone, unless there are many."""
    real, taken = cpu.few_query_attention, []

    def spy(query: Tensor, runs: Sequence[Run], *more: Any) -> Tensor:
        taken.append((len(query), sum(len(keys) for keys, _ in runs)))
        return real(query, runs, *more)

    monkeypatch.setattr(cpu, "few_query_attention", spy)
    torch.manual_seed(3)
    check([*range(20, 60), 3000, *range(5000, 5002), *range(5100, 5140), 5999], 6000)
    assert taken == [(1, 3001), (2, 5002), (1, 6000)]
    taken.clear()
    check([*range(20, 60), 3000, 3002, 3004, 3006, 5999], 6000)
    assert taken == []


@pytest.mark.parametrize("heads", HEADS)
def test_the_fused_kernel_of_other_devices(heads: tuple[int, int, int]) -> None:
    torch.manual_seed(2)
    query, keys, values = make_inputs(4, 50, heads, torch.float32)
    keys, values, positions = keys.transpose(0, 1), values.transpose(0, 1), torch.tensor([0, 7, 8, 41])
    expected = reference_attention(query, positions, keys, values)
    torch.testing.assert_close(sdpa_attention_at_positions(query, positions, keys, values), expected)
    scoring = 6, 0.2, 1.5
    expected = reference_attention(query, positions, keys, values, *scoring)
    torch.testing.assert_close(sdpa_attention_at_positions(query, positions, keys, values, *scoring), expected)
