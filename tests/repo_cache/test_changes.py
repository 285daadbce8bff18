"""The difference of two versions' spans: every span in one place, and as many kept as can be."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from repo_cache import spans as changes
from repo_cache.spans import FileSpans, KeptRun, SpanChanges, compare_spans

letters = st.text("abcdef", max_size=12)


def spans(text: str) -> FileSpans:
    """A file of one span a letter, which is its key."""
    num = len(text)
    return FileSpans(
        ends=np.arange(1, num + 1, dtype=np.uint32),
        keys=np.frombuffer("".join(letter * 16 for letter in text).encode(), np.uint8).reshape(num, 16),
        first_lines=np.arange(num, dtype=np.uint32),
        mid_line=np.zeros(num, np.bool_),
        num_lines=num,
        block_starts=np.zeros(min(num, 1), np.uint32),
        block_spans=np.zeros(min(num, 1), np.uint32),
    )


def longest_common(old: str, new: str) -> int:
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, left in enumerate(old):
        for j, right in enumerate(new):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def check(old: str, new: str, found: SpanChanges) -> None:
    kept = [(run.old + step, run.new + step) for run in found.kept for step in range(run.length)]
    olds = [left for left, _ in [*kept, *found.moved, *found.changed]] + list(found.removed)
    news = [right for _, right in [*kept, *found.moved, *found.changed]] + list(found.new)
    assert sorted(olds) == list(range(len(old)))
    assert sorted(news) == list(range(len(new)))
    assert all(old[left] == new[right] for left, right in [*kept, *found.moved])
    assert kept == sorted(kept)
    assert [right for _, right in kept] == sorted(right for _, right in kept)
    assert all(run.length > 0 for run in found.kept)
    # What is neither kept nor moved has its key on one side only.
    left_old = Counter(old[left] for left in [*(pair[0] for pair in found.changed), *found.removed])
    left_new = Counter(new[right] for right in [*(pair[1] for pair in found.changed), *found.new])
    assert not left_old & left_new
    # Changed pairs stand between the same kept spans.
    for left, right in found.changed:
        assert sum(place < left for place, _ in kept) == sum(place < right for _, place in kept)
    between = [sum(place < left for place, _ in kept) for left in found.removed]
    assert not set(between) & {sum(place < right for _, place in kept) for right in found.new}


@given(letters, letters)
def test_every_span_is_in_one_place_and_no_more_could_be_kept(old: str, new: str) -> None:
    found = compare_spans(spans(old), spans(new))
    check(old, new, found)
    assert found.num_kept == longest_common(old, new)


@given(letters, letters)
def test_files_too_long_for_a_matrix_lose_no_span(old: str, new: str) -> None:
    limit, changes.MAX_MATRIX_BITS = changes.MAX_MATRIX_BITS, 0
    try:
        check(old, new, compare_spans(spans(old), spans(new)))
    finally:
        changes.MAX_MATRIX_BITS = limit


def test_a_swap_an_edit_and_an_insertion() -> None:
    found = compare_spans(spans("abcdef"), spans("abxdefc"))
    assert found.kept == (KeptRun(0, 0, 2), KeptRun(3, 3, 3))
    assert found.moved == ((2, 6),)
    assert found.new == (2,)
    assert compare_spans(spans("abc"), spans("axxc")) == SpanChanges(
        (KeptRun(0, 0, 1), KeptRun(2, 3, 1)), (), ((1, 1),), (2,)
    )


def test_a_file_that_came_or_went() -> None:
    assert compare_spans(None, spans("ab")) == SpanChanges(new=(0, 1))
    assert compare_spans(spans("ab"), None) == SpanChanges(removed=(0, 1))
    assert compare_spans(None, None) == SpanChanges()
