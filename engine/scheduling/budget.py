"""Sharing a step's tokens among those who want some."""

from __future__ import annotations

from collections.abc import Sequence


def shares(wanted: Sequence[int], total: int) -> list[int]:
    """Equal shares of `total` tokens, none larger than what is wanted; what does not divide goes to the first.

    What one does not want the others share: `shares([5, 100, 100], 65) == [5, 30, 30]` and
    `shares([100, 100], 65) == [33, 32]`. In sum min(total, sum(wanted)).
    """
    level, left = 0, total
    for num_served, want in enumerate(sorted(wanted)):
        level = left // (len(wanted) - num_served)
        if want > level:
            break
        left -= want
    granted = [min(want, level) for want in wanted]
    left = total - sum(granted)
    for place, want in enumerate(wanted):
        extra = min(want - granted[place], left)
        granted[place] += extra
        left -= extra
    return granted
