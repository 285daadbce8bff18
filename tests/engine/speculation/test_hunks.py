"""Places of a merge and of the original: the same token outside of hunks, and back again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.speculation.sources import Hunks

START, OLD_START = 5, 100
ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids, ids)
def test_outside_of_hunks_the_texts_are_equal_and_places_are_told_both_ways(
    merge: list[int], original: list[int]
) -> None:
    found = Hunks(merge, original, START, OLD_START)
    for at in range(len(merge)):
        place = START + at
        old_place = found.find_old_place(place)
        assert OLD_START <= old_place <= OLD_START + len(original)
        if not found.touches(place, place + 1):
            assert original[old_place - OLD_START] == merge[at]
            assert found.find_new_place(old_place) == place
    assert [found.find_old_place(START + at) for at in range(len(merge))] == sorted(
        found.find_old_place(START + at) for at in range(len(merge))
    )


@given(ids, ids)
def test_hunks_are_in_order_and_what_is_between_them_is_equal(merge: list[int], original: list[int]) -> None:
    at, old_at = START, OLD_START
    for hunk in Hunks(merge, original, START, OLD_START).hunks:
        assert hunk.start - at == hunk.old_start - old_at >= 0
        assert merge[at - START : hunk.start - START] == original[old_at - OLD_START : hunk.old_start - OLD_START]
        at, old_at = hunk.end, hunk.old_end
    assert merge[at - START :] == original[old_at - OLD_START :]


def test_hunks_close_by_are_left_together() -> None:
    original = [*range(200), 901, *range(200, 210), 902, *range(210, 400)]
    merge = [*range(200), *range(200, 210), 903, *range(210, 400)]
    found = Hunks(merge, original, 0, 0)
    assert len(found.hunks) == 2
    region = found.find_region(205)
    assert region is not None
    assert (region.old_start, region.old_end) == (200, 212)
    assert (region.start, region.end) == (200, 211)
    assert found.find_region(199) is None
    assert found.find_region(212) is None


def test_a_text_without_changes_has_no_hunk() -> None:
    found = Hunks([1, 2, 3], [1, 2, 3], START, OLD_START)
    assert found.hunks == []
    assert found.find_new_place(found.find_old_place(START + 3)) == START + 3
