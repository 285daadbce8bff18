"""What each row of a sequence sees: written out row by row, with and without a window, a gap, a fork."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.step_rows import Fork, SequenceRows
from kernels.paged_attention import TREE_BITS


def seen_by(rows: SequenceRows, window: int | None) -> list[set[int]]:
    """Places that key_ends and the tree mask show to each row."""
    num_words = rows.num_words(window)
    ends, tree, start = rows.key_ends(window), rows.tree(window, num_words + 1), rows.tree_start(window)
    assert not tree[:, num_words:].any(), "one word more holds nothing"
    assert (ends <= start).all()
    found = []
    for end, words in zip(ends.tolist(), tree.tolist(), strict=True):
        low = 0 if window is None else max(0, end - window)
        bits = {
            start + word * TREE_BITS + bit for word, each in enumerate(words) for bit in range(63) if each >> bit & 1
        }
        found.append(set(range(low, end)) | bits)
    return found


@given(
    st.integers(0, 150),
    st.lists(st.integers(0, 3), min_size=0, max_size=5),
    st.integers(1, 140),
    st.none() | st.tuples(st.integers(0, 139), st.integers(1, 70)),
    st.none() | st.integers(1, 90),
)
def test_a_row_sees_what_stands_before_it_on_its_side(
    start: int, gaps: list[int], num_neighbours: int, fork: tuple[int, int] | None, window: int | None
) -> None:
    positions = [start]
    for gap in gaps:
        positions.append(positions[-1] + 1 + gap)
    positions += range(positions[-1] + 1, positions[-1] + num_neighbours)
    end, branch, expected = positions[-1] + 1, None, []
    for position in positions:
        low = 0 if window is None else max(0, position + 1 - window)
        expected.append(set(range(low, position + 1)))
    if fork is not None:
        at = max(end - fork[0], positions[len(gaps)] + 1 if num_neighbours > 1 else end)
        branch = Fork(at, end, fork[1])
        for number in range(fork[1]):
            low = 0 if window is None else max(0, at + number + 1 - window)
            own = {end + each for each in range(number + 1) if at + each >= low}
            expected.append(set(range(low, at)) | own)
        positions += range(at, at + fork[1])
    rows = SequenceRows([0] * len(positions), positions, range(400), branch)
    assert seen_by(rows, window) == expected
    assert rows.num_places == end + (fork[1] if fork else 0)


def test_places_become_slots_page_by_page() -> None:
    rows = SequenceRows([0] * 5, [6, 7, 8, 7, 8], [5, 2, 9], Fork(at=7, start=9, num_tokens=2))
    assert rows.places.tolist() == [6, 7, 8, 9, 10]
    assert rows.slots(4).tolist() == [2 * 4 + 2, 2 * 4 + 3, 9 * 4, 9 * 4 + 1, 9 * 4 + 2]
    assert np.array_equal(SequenceRows([0], [6], [-1, 2]).slots(4), [10])
