"""Which bytes of a text another version of it replaces: one range, found at memory speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", np.uint8, np.uint32)

_BLOCK = 1 << 16
"""Elements compared at once: few enough to stay in the cache, so many that Python's part does not count."""


@dataclass(frozen=True, slots=True)
class TextChange:
    """`old[start:old_end]` became `new[start:new_end]`; byte offsets, never inside a UTF-8 character."""

    start: int
    old_end: int
    new_end: int


def text_change(old: bytes, new: bytes) -> TextChange | None:
    """The smallest range that differs; None where nothing does. Both are UTF-8.

    Where more than one range would do, the last one is given, as the common beginning is taken first: of 'aa' that
    became 'aaa' the change is (2, 2, 3).
    """
    if old == new:
        return None
    first, second = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    shorter = min(len(old), len(new))
    start = num_equal(first[:shorter], second[:shorter])
    while _inside_character(old, start) or _inside_character(new, start):
        start -= 1
    rest = shorter - start
    num_behind = num_equal_from_the_end(first[len(old) - rest :], second[len(new) - rest :])
    while _inside_character(old, len(old) - num_behind):  # what follows is the same in both
        num_behind -= 1
    return TextChange(start, len(old) - num_behind, len(new) - num_behind)


def num_equal(first: NDArray[T], second: NDArray[T]) -> int:
    """How many elements two arrays of one length have in common at their beginning."""
    for begin in range(0, len(first), _BLOCK):
        differs = first[begin : begin + _BLOCK] != second[begin : begin + _BLOCK]
        place = int(differs.argmax())
        if differs[place]:
            return begin + place
    return len(first)


def num_equal_from_the_end(first: NDArray[T], second: NDArray[T]) -> int:
    """How many elements two arrays of one length have in common at their end."""
    for end in range(len(first), 0, -_BLOCK):
        differs = first[max(0, end - _BLOCK) : end] != second[max(0, end - _BLOCK) : end]
        place = int(differs[::-1].argmax())
        if differs[len(differs) - 1 - place]:
            return len(first) - end + place
    return len(first)


def _inside_character(data: bytes, offset: int) -> bool:
    return 0 < offset < len(data) and data[offset] & 0xC0 == 0x80
