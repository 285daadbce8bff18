"""Content-defined cutting by rank and hash: what is cut at is what the definition says, and it is told nearby."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from repo_cache.chunks import select_borders

END, APART, REACH = 400, 16, 60
borders = st.dictionaries(st.integers(1, END - 1), st.integers(0, 9), max_size=60).map(
    lambda found: sorted(found.items())
)


def by_definition(found: list[tuple[int, int]], start: int, end: int) -> list[int]:
    """The docstring of `select_borders`, word for word."""

    def is_stronger(other: tuple[int, int], own: tuple[int, int]) -> bool:
        return other[1] > own[1] or (other[1] == own[1] and other[0] < own[0])

    def nearest(own: tuple[int, int], among: list[tuple[int, int]]) -> tuple[int, int]:
        stronger = [other[0] for other in among if is_stronger(other, own)]
        before = max([start, *(place for place in stronger if place < own[0])])
        return before, min([end, *(place for place in stronger if place > own[0])])

    running = [
        own for own in found if own[0] - nearest(own, found)[0] >= APART and nearest(own, found)[1] - own[0] >= APART
    ]
    return [own[0] for own in running if nearest(own, running)[1] - nearest(own, running)[0] > REACH]


def cut(found: list[tuple[int, int]], start: int = 0, end: int = END) -> list[int]:
    places, strengths = [place for place, _ in found], [strength for _, strength in found]
    return select_borders(places, strengths, start, end, apart=APART, reach=REACH)


@given(borders)
def test_cuts_are_those_of_the_definition(found: list[tuple[int, int]]) -> None:
    assert cut(found) == by_definition(found, 0, END)


@given(borders)
def test_pieces_are_not_short(found: list[tuple[int, int]]) -> None:
    edges = [0, *cut(found), END]
    assert len(edges) == 2 or all(later - earlier >= APART for earlier, later in pairwise(edges))


@given(borders, borders, st.integers(100, 300))
def test_what_is_far_away_does_not_count(found: list[tuple[int, int]], other: list[tuple[int, int]], at: int) -> None:
    """Whatever stands before `at` is replaced: cuts behind `at` and what their decision looks at stay."""
    behind = [border for border in found if border[0] >= at]
    changed = [border for border in other if border[0] < at] + behind
    far = at + REACH + 2 * APART
    assert [place for place in cut(found) if place > far] == [place for place in cut(changed) if place > far]


def test_of_equal_strengths_the_first_counts() -> None:
    assert cut([(200, 1), (210, 1)]) == [200]
    assert cut([(200, 1), (210, 2)]) == [210]
