"""Top tokens, sampled tokens and accepted drafts are those of the naive version."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.accept import (
    AcceptOutput,
    Draws,
    TopTokens,
    accept,
    count_accepted,
    find_top_tokens,
    find_top_tokens_by_tile,
)
from tests.kernels.naive import naive_count_accepted, naive_top_tokens

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def check_same(actual: TopTokens, expected: TopTokens) -> None:
    assert np.array_equal(actual.largest, expected.largest, equal_nan=True)
    numbers = ~np.isnan(expected.largest)
    assert np.array_equal(actual.token_ids[numbers], expected.token_ids[numbers])
    assert np.array_equal(actual.second[numbers], expected.second[numbers])
    assert actual.largest.dtype == actual.second.dtype == np.float32


values = st.one_of(
    st.integers(-3, 3).map(float), st.sampled_from([0.0, -0.0, float("-inf"), float("inf"), 1e-30]), st.floats(-60, 60)
)


@given(st.data(), st.integers(1, 4), st.sampled_from([1, 2, 7, 15, 16, 32, 48, 64]), st.sampled_from(DTYPES))
def test_the_first_of_the_likeliest_and_the_next_one(
    data: st.DataObject, num_rows: int, vocab_size: int, dtype: torch.dtype
) -> None:
    """Small numbers of few kinds, so that ties are everywhere, zeros with either sign among them."""
    rows = [data.draw(st.lists(values, min_size=vocab_size, max_size=vocab_size)) for _ in range(num_rows)]
    logits = torch.tensor(rows).to(dtype)
    check_same(find_top_tokens(logits), naive_top_tokens(logits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0.0, 30.0, -30.0])
def test_rows_of_a_real_size(dtype: torch.dtype, shift: float) -> None:
    logits = (torch.randn(5, 5008, generator=torch.Generator().manual_seed(0)) * 4 + shift).to(dtype)
    check_same(find_top_tokens(logits), naive_top_tokens(logits))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 500, 999])
@pytest.mark.parametrize("bits", ["quiet", "negative"])
def test_a_row_with_a_nan_says_so(dtype: torch.dtype, place: int, bits: str) -> None:
    """A NaN with its sign set is what x86 makes of 0 * inf; its bits are those of a small integer."""
    logits = torch.randn(4, 1008, generator=torch.Generator().manual_seed(0)).to(dtype)
    nan = torch.tensor(float("nan"), dtype=dtype)
    logits[2, place] = nan if bits == "quiet" else torch.copysign(nan, torch.tensor(-1.0, dtype=dtype))
    found = find_top_tokens(logits)
    assert np.isnan(found.largest).tolist() == [False, False, True, False]
    check_same(found, naive_top_tokens(logits))


def test_rows_of_a_wider_tensor_are_read_where_they_lie() -> None:
    for dtype in DTYPES:
        logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
        check_same(find_top_tokens(logits[::2, 5:40]), naive_top_tokens(logits[::2, 5:40]))
        assert torch.equal(logits, torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype))


@given(st.data(), st.sampled_from(DTYPES), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_a_vocabulary_in_tiles_gives_what_all_of_it_gives(
    data: st.DataObject, dtype: torch.dtype, sizes: list[int]
) -> None:
    """Each tile's logits are handed out in the same memory, as an allocator may: none may be kept."""
    rows = [data.draw(st.lists(values, min_size=sum(sizes), max_size=sum(sizes))) for _ in range(3)]
    if data.draw(st.booleans()):
        rows[1][data.draw(st.integers(0, sum(sizes) - 1))] = float("nan")
    logits = torch.tensor(rows).to(dtype)
    memory = torch.empty(3 * max(sizes), dtype=dtype)
    calls: list[int] = []

    def tile(part: Tensor) -> Callable[[Tensor], Tensor]:
        def give(hidden: Tensor) -> Tensor:
            calls.append(len(hidden))
            memory.fill_(99.0)
            return memory[: part.numel()].view(part.shape).copy_(part)

        return give

    found = find_top_tokens_by_tile(torch.zeros(3, 4), [tile(part) for part in logits.split(sizes, dim=1)])
    check_same(found, naive_top_tokens(logits))
    assert calls == [3] * len(sizes)


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_a_draft_is_accepted_up_to_the_first_other_token(chosen: list[int], draft: list[int]) -> None:
    assert count_accepted(np.array(chosen, dtype=np.intp), draft) == naive_count_accepted(chosen, draft)


def test_gaps_say_how_near_a_tie_a_choice_was() -> None:
    assert find_top_tokens(torch.tensor([[1.0, 3.0, 2.5], [2.0, 2.0, 0.0]])).gaps.tolist() == [0.5, 0.0]
    assert find_top_tokens(torch.tensor([[1.0]])).gaps.tolist() == [float("inf")]


def accepted(logits: torch.Tensor, draft: list[int], row_starts: list[int], draws: Draws | None = None) -> AcceptOutput:
    starts = torch.tensor(row_starts, dtype=torch.int32)
    return accept(logits, torch.tensor(draft, dtype=torch.int64), starts, draws).to_host()


@given(st.data(), st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_each_sequence_confirms_what_its_rows_choose(data: st.DataObject, sizes: list[int]) -> None:
    """Rows of three tokens, so that a draft is often right; sequences without a row confirm nothing."""
    num_rows = sum(sizes)
    ids = st.lists(st.integers(0, 2), min_size=num_rows, max_size=num_rows)
    logits = torch.nn.functional.one_hot(torch.tensor(data.draw(ids), dtype=torch.int64), 3).float()
    draft, starts = data.draw(ids), [sum(sizes[:at]) for at in range(len(sizes) + 1)]
    found = accepted(logits, draft, starts)
    token_ids = logits.argmax(-1).tolist()
    assert found.token_ids.tolist() == found.top_tokens.token_ids.tolist() == token_ids
    assert found.num_accepted.tolist() == [
        naive_count_accepted(token_ids[first:last], draft[first:last]) for first, last in pairwise(starts)
    ]


def test_a_row_that_is_no_number_confirms_nothing() -> None:
    for bad in (float("nan"), float("inf")):
        logits = torch.tensor([[0.0, 1.0], [bad, 0.0], [0.0, 1.0]])
        found = accepted(logits, [1, 0, 1], [0, 3])
        assert found.num_accepted.tolist() == [1]
        assert np.array_equal(found.top_tokens.largest, [1.0, bad, 1.0], equal_nan=True)


def test_the_runner_up_and_the_logits_come_along() -> None:
    logits = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    found, expected = accepted(logits, [-1, -1, -1], [0, 1, 2, 3]), find_top_tokens(logits)
    assert np.array_equal(found.top_tokens.largest, expected.largest)
    assert np.array_equal(found.top_tokens.second, expected.second)
    assert found.num_accepted.tolist() == [0, 0, 0]


def test_a_row_draws_where_its_temperature_is_not_0() -> None:
    """Weights 1, e and 1 of 4.72: the borders are at 0.212 and 0.788."""
    logits = torch.tensor([0.0, 1.0, 0.0]).expand(6, 3)
    numbers = torch.tensor([0.0, 0.21, 0.22, 0.78, 0.79, 0.999], dtype=torch.float64)
    draws = Draws(torch.ones(6), numbers)
    found = accepted(logits, [0, 0, 1, 1, 1, -1], [0, 2, 6], draws)
    assert found.token_ids.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.top_tokens.token_ids.tolist() == [1] * 6
    assert found.num_accepted.tolist() == [2, 2]
    cold = Draws(torch.tensor([0.0, 0.0, 1e-40, 1.0, 0.0, 1.0]), numbers)
    assert accepted(logits, [-1] * 6, [0, 6], cold).token_ids.tolist() == [1, 1, 1, 1, 1, 2]
