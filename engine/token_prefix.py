"""The length of the common prefix of two token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIRST_CHUNK = 64
"""Tokens compared at once; each further chunk is twice as long. Most sequences differ early, some after thousands."""

TokenIds = Sequence[int] | NDArray[np.integer[Any]]


def count_common_prefix(one: TokenIds, other: TokenIds) -> int:
    """Return how many tokens the two sequences have in common at their beginning.

    It is what a prefix cache can reuse of one prompt for the other. Example: [1, 2, 3] and [1, 2] have 2.
    """
    count = min(len(one), len(other))
    first, size = 0, FIRST_CHUNK
    while first < count:
        end = min(first + size, count)
        differ = np.asarray(one[first:end]) != np.asarray(other[first:end])
        index = int(differ.argmax())
        if differ[index]:
            return first + index
        first, size = end, 2 * size
    return count
