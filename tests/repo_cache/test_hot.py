"""Hot texts: the newest stay, the sizes add up, and nothing larger than the limit is kept."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from repo_cache.contents import HotText, HotTexts, Key
from repo_cache.incremental import EncodedText
from repo_cache.spans import CutText, FileSpans

LIMIT = 2000


@cache
def text_of(length: int) -> HotText:
    ids = np.arange(length, dtype=np.uint32)
    numbers, nothing = np.zeros(0, np.uint32), np.zeros(0, np.bool_)
    spans = FileSpans(numbers, np.zeros((0, 16), np.uint8), numbers, nothing, 0, numbers, numbers)
    return HotText(EncodedText(b"x" * length, ids, ids + 1), CutText(spans, {}))


keys = st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, "python"]))
steps = st.lists(st.tuples(st.sampled_from(["put", "get", "drop"]), keys, st.integers(0, 300)), max_size=60)


@given(steps)
def test_it_is_a_plain_list_cut_at_the_limit(steps: list[tuple[str, Key, int]]) -> None:
    hot = HotTexts(LIMIT)
    newest_last: list[tuple[Key, HotText]] = []
    for step, key, length in steps:
        expected = dict(newest_last).get(key)
        if step == "get":
            assert hot.get(key) is expected
        newest_last = [pair for pair in newest_last if pair[0] != key]
        if step == "get" and expected is not None:
            newest_last.append((key, expected))
        if step == "drop":
            hot.drop(key)
        if step == "put":
            hot.put(key, text_of(length))
            if text_of(length).num_bytes <= LIMIT:
                newest_last.append((key, text_of(length)))
            while sum(text.num_bytes for _, text in newest_last) > LIMIT:
                newest_last.pop(0)
        hot.check_integrity()
        assert len(hot) == len(newest_last)
    assert all(hot.get(key) is text for key, text in newest_last)
