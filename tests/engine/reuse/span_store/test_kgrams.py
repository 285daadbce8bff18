"""The hashes in passes of numpy are the polynomial's, one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.reuse.span_entry import KGRAM_LEN, MULTIPLIER, kgram_hashes


@given(token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_kgram_hashes(token_ids: list[int]) -> None:
    expected = []
    for first in range(len(token_ids) - KGRAM_LEN + 1):
        value = 0
        for token_id in token_ids[first : first + KGRAM_LEN]:
            value = (value * MULTIPLIER + token_id + 1) % 2**64
        expected.append(value)
    assert kgram_hashes(np.array(token_ids, dtype=np.uint32)).tolist() == expected
