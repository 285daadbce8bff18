"""How many tokens to draft: more after a clean accept, fewer after a miss."""

from __future__ import annotations

SMALLEST, FIRST, LARGEST = 8, 32, 256
"""Draft lengths in tokens. A pass over 64 rows costs two (AMX) to three (AVX-512) single ones on the machines
measured, so even a quarter of the smallest window accepted pays for itself."""


class DraftWindow:
    """The draft length of one sequence."""

    def __init__(self) -> None:
        self.size = FIRST

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from one verified draft: double on a clean accept, halve on a miss."""
        if num_drafted == 0:
            return
        if num_accepted == num_drafted:
            self.size = min(LARGEST, self.size * 2)
        else:
            self.size = max(SMALLEST, self.size // 2, min(num_accepted, LARGEST))
