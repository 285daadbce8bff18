"""Where two prompts part: the first token that a prefix cache could not reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptDifference:
    """`index` is the number of tokens in common; the ids are those at it, None where a prompt ends there."""

    index: int
    first_id: int | None
    second_id: int | None


def first_difference(first: Sequence[int], second: Sequence[int]) -> PromptDifference | None:
    """Where two prompts first differ, None if they are equal.

    Of [1, 2, 3] and [1, 2]: index 2, ids 3 and None.
    """
    shorter = min(len(first), len(second))
    for index in range(shorter):
        if first[index] != second[index]:
            return PromptDifference(index, first[index], second[index])
    if len(first) == len(second):
        return None
    return PromptDifference(
        shorter,
        first[shorter] if shorter < len(first) else None,
        second[shorter] if shorter < len(second) else None,
    )
