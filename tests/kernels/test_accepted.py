"""What a pass chooses and confirms, in one tensor: as row by row and sequence by sequence, greedy and drawn."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.accept import AcceptOutput, Draws, accept, find_top_tokens
from tests.kernels.naive import naive_count_accepted


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
