"""Numbers of rows that share a kernel: few classes, for each constant is another compilation."""

from __future__ import annotations

MOST_ROWS = 4096


def rows_up_to(num_rows: int) -> int:
    """The next power of 4 from `num_rows` on, and not above MOST_ROWS."""
    power = 1
    while power < min(num_rows, MOST_ROWS):
        power *= 4
    return power
