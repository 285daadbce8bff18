"""Accepting a draft: the vectorised count against a loop."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.accept import num_accepted

few_ids = st.integers(0, 2)  # few different ids, so that long agreements, and agreements after a departure, are common


def count_by_loop(targets: list[int], draft: list[int]) -> int:
    for count, token_id in enumerate(draft):
        if targets[count] != token_id:
            return count
    return len(draft)


@given(st.lists(st.tuples(few_ids, few_ids), max_size=12), few_ids)
@example([], 0)
@example([(1, 1), (1, 2), (1, 1)], 0)
def test_the_longest_agreeing_prefix_is_accepted(rows: list[tuple[int, int]], free: int) -> None:
    targets, draft = [chosen for chosen, _ in rows] + [free], [drafted for _, drafted in rows]
    count = num_accepted(torch.tensor(targets), torch.tensor(draft, dtype=torch.int64))
    assert count == count_by_loop(targets, draft)
