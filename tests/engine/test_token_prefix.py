"""The common prefix of two token sequences equals that of a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.token_prefix import count_common_prefix

IDS = st.lists(st.integers(0, 2), max_size=6)


@given(num_common=st.integers(0, 300), one=IDS, other=IDS)
def test_the_prefix_is_that_of_a_loop(num_common: int, one: list[int], other: list[int]) -> None:
    common = [number % 7 for number in range(num_common)]
    one, other = common + one, common + other
    expected = 0
    while expected < min(len(one), len(other)) and one[expected] == other[expected]:
        expected += 1
    assert count_common_prefix(one, other) == expected
    assert count_common_prefix(tuple(other), tuple(one)) == expected
    assert count_common_prefix(np.array(one, dtype=np.uint32), np.array(other, dtype=np.uint32)) == expected


def test_the_end_of_a_sequence_ends_the_prefix() -> None:
    assert count_common_prefix([1, 2, 3], [1, 2]) == 2
    assert count_common_prefix([], [5]) == 0
    assert count_common_prefix([1], [1]) == 1
