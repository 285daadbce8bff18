"""Answers that go apart: what all begin with, and of each the part that shows which one a model would write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NUM_BEHIND = 8
"""Tokens behind the last difference that belong to a part: what an answer leaves out shows in what comes instead."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Token ids: `trunk` is what every answer begins with, `parts[i]` is how the i-th goes on from there.

    Parts end `NUM_BEHIND` tokens behind the last difference, or with their answer; none is empty.
    """

    trunk: Sequence[int]
    parts: tuple[Sequence[int], ...]


def siblings(answers: Sequence[Sequence[int]], unchanged: Sequence[int]) -> Siblings | None:
    """What tells answers apart from each other and from `unchanged`, the answer that changes nothing; None: nothing.

    Example, with 2 tokens behind: "a b c d e f", "a b d e f" and, unchanged, "a x c d e f" have the trunk "a" and the
    parts "b c d e" and "b d e".
    """
    everything = [*answers, unchanged]
    num_before = min(common_start(everything), min(map(len, everything)) - 1)  # one may be another's beginning
    rests = [answer[num_before:] for answer in everything]
    num_behind = common_start([rest[::-1] for rest in rests])
    if all(len(rest) == num_behind for rest in rests):
        return None
    parts = tuple(rest[: len(rest) - num_behind + NUM_BEHIND] for rest in rests[:-1])
    return Siblings(answers[0][:num_before], parts)


def common_start(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all begin with in common."""
    first, *others = sequences
    for at, token_id in enumerate(first):
        if any(at >= len(other) or other[at] != token_id for other in others):
            return at
    return len(first)
