"""Counts the passes that a draft takes, against a target that is known: no model runs, and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.types import Proposer

UNCAPPED = 1 << 30


@dataclass(frozen=True, slots=True)
class Windows:
    """How many tokens a pass drafts: `first` in the pass that is fused with the prefill, then `least` to `most`.

    A window grows fourfold when all of it was accepted, and is `least` again behind a miss.
    """

    first: int
    least: int
    most: int

    @classmethod
    def fixed(cls, size: int, first: int = 0) -> Windows:
        """The same window in every pass; none in the first one, unless said so."""
        return cls(first, size, size)


def forwards(proposer: Proposer, target: Sequence[int], windows: Windows) -> int:
    """Passes behind the prefill until all of `target` is written.

    Each pass confirms the drafted tokens that are right, and gives one more; so does the prefill, which is not counted.
    """
    written, passes, size = 0, -1, windows.least
    while written < len(target):
        room = min(windows.first if passes < 0 else size, len(target) - written)
        draft = list(proposer.propose(target[:written], room).token_ids) if room else []
        accepted = common_len(draft, target[written : written + len(draft)])
        if passes >= 0:
            size = min(windows.most, 4 * size) if accepted == len(draft) else windows.least
        written += accepted + 1
        passes += 1
    return passes


def common_len(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are equal from the start."""
    if list(one) == list(other):
        return len(one)
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
