"""What drafts have cost a request and saved it, so that they cannot make it slower than it would be without."""

from __future__ import annotations

from dataclasses import dataclass

SLACK = 0.025
"""The share of the time without drafts that a request may take longer with them: 1 / 1.025 is 0.976.

What is left to 0.95 is for times that are wrong by some: single passes wait for memory and others for the cores, and
other work slows the one or the other. Edits that copy are as quick with less.
"""


@dataclass(slots=True)
class Balance:
    """Seconds of one request by the pass times: as it ran, drafters asked, and as it would have run without drafts.

    Those of reading its prompt are in neither: what may be lost depends on what is written, not on what was cached. The
    clock is asked for none of them, so that an equal request has equal passes.
    """

    spent_s: float = 0.0
    plain_s: float = 0.0

    def book(self, spent_s: float, plain_s: float) -> None:
        """Something was done that took `spent_s`, and would have taken `plain_s` without drafts."""
        self.spent_s += spent_s
        self.plain_s += plain_s

    def left(self, ahead_s: float) -> float:
        """Seconds that the next draft may cost for nothing, if what is ahead takes `ahead_s` without drafts."""
        return max(0.0, (1.0 + SLACK) * self.plain_s + SLACK * ahead_s - self.spent_s)
