"""Plans which tokens of a prompt take stored KV, and which are computed."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.types import Match, RecomputeReason, Reuse

MOST_PROMPTS = 64
"""Prompts that are remembered: a change is relative to the last turns of a conversation."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The tokens [source, source + length) of a record were at `start` of a prompt."""

    start: int
    length: int
    record: int
    source: int


class Lineage:
    """The last prompts that reused KV, as parts of records.

    A prompt that reuses what an earlier one reused, and continues after it, changes nothing: whatever its parts had
    missed of one another, they had missed before.
    """

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self._prompts: deque[tuple[_Part, ...]] = deque(maxlen=most)

    def add(self, placed: Sequence[Match], record: int | None, own: Sequence[tuple[int, int]]) -> None:
        """Add a prompt that reused `placed` and computed the half-open ranges `own`, which are in this record."""
        parts = [_Part(each.start, len(each.slots), each.record, each.source) for each in placed]
        if record is not None:
            parts += [_Part(first, end - first, record, first) for first, end in own]
        self._prompts.appendleft(tuple(sorted(parts, key=lambda part: part.start)))

    def continues(self, before: Match | None, match: Match) -> bool:
        """Return whether a remembered prompt had a match at its present position, after the same token if one is given.

        Within one record this holds if the two were neighbours; without a match before it, if it keeps its position.
        """
        if before is None:
            return match.source == match.start or any(
                _find_position(parts, match.record, match.source) == match.start for parts in self._prompts
            )
        last = before.source + len(before.slots) - 1
        if match.record == before.record and match.source == last + 1:
            return True
        for parts in self._prompts:
            position = _find_position(parts, before.record, last)
            if position is not None and _find_position(parts, match.record, match.source) == position + 1:
                return True
        return False

    def forget(self) -> None:
        """Forget all prompts."""
        self._prompts.clear()


def _find_position(parts: Sequence[_Part], record: int, source: int) -> int | None:
    """Return the position of a record's token in a prompt of these parts, or None."""
    for part in parts:
        if part.record == record and 0 <= source - part.source < part.length:
            return part.start + source - part.source
    return None


FEWEST_TOKENS = 8
"""A shorter match is computed: it saves less than a wrong context costs."""

MAX_GENERATION = 3
"""A prompt that would reuse KV of this generation reuses nothing: it is run exactly, and all its KV is exact again.

Computing only the old tokens again would not help: the KV that they attend to makes them old at once.
"""

LEAST_SAVED = 0.5
"""The share of the tokens after the exact prefix that must be reused, or none is: everything computed after the first
reused token is approximate and never shared, which later turns pay for. On recorded sessions without idle time between
the turns, 523 prompts of 5.4 million tokens, `fast` ran more than an exact prefix cache without this rule."""

_REASONS: tuple[RecomputeReason, ...] = ("changed", "segment", "budget", "asked", "tail")


@dataclass(frozen=True, slots=True, eq=False)
class ReusePlan:
    """What is done with a prompt's tokens after its exact prefix.

    num_exact: tokens up to here are exact once they are computed: the cached prefix, and what follows it up to the
    first reused token. placed: the matches that are reused, ascending, without overlap. pending: positions of the
    tokens that are computed, ascending, the last one among them. by_reason: their numbers by reason. generation: of
    what is computed after `num_exact`: that of the KV it attends to, or one more if that has missed a change.
    """

    num_exact: int
    placed: tuple[Match, ...]
    pending: NDArray[np.int64]
    by_reason: Mapping[RecomputeReason, int]
    generation: int

    @property
    def num_placed(self) -> int:
        """Tokens that are reused."""
        return sum(len(each.slots) for each in self.placed)


def plan_reuse(
    num_tokens: int, num_cached: int, matches: Sequence[Match], reuse: Reuse, lineage: Lineage | None = None
) -> ReusePlan:
    """Plan a prompt of `num_tokens`, of which the first `num_cached` have exact KV.

    `matches` ascend, do not overlap and lie after the exact prefix, before the last token. Every token is cached,
    placed or pending; with a budget of 1 all tokens after the prefix are pending, which is a full prefill. `lineage`
    knows where two matches meet that met in an earlier prompt.
    """
    matches = [each for each in matches if len(each.slots) >= FEWEST_TOKENS]
    if any(each.generation >= MAX_GENERATION for each in matches):
        matches = []
    changes = _find_changes(num_cached, matches, lineage or Lineage())
    why = np.full(num_tokens, -1, dtype=np.int8)
    why[num_cached:] = _REASONS.index("changed")
    for match in matches:
        why[match.start : match.end] = -1
    if reuse.mode == "fast":
        _mark(why, _find_segment_rests(num_tokens, changes, reuse.segment_ends), "segment")
    if np.count_nonzero(why[num_cached:] < 0) < LEAST_SAVED * (num_tokens - num_cached):
        why[num_cached:] = _REASONS.index("changed")
    _mark(why, [(max(first, num_cached), max(end, num_cached)) for first, end in reuse.recompute], "asked")
    if reuse.budget:
        _spend(why, reuse.budget)
    _mark(why, [(num_tokens - 1, num_tokens)], "tail")
    placed = tuple(part for match in matches for part in _split_reused(match, why))
    pending = np.flatnonzero(why >= 0)
    counts = np.bincount(why[pending], minlength=len(_REASONS))
    return ReusePlan(
        num_exact=placed[0].start if placed else num_tokens,
        placed=placed,
        pending=pending,
        by_reason={reason: int(count) for reason, count in zip(_REASONS, counts, strict=True) if count},
        generation=max((each.generation for each in placed), default=0) + bool(placed and changes),
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """A change before the match at `end`: the tokens [start, end) are new, or some are gone (then start equals end)."""

    start: int
    end: int


def _find_changes(num_cached: int, matches: Sequence[Match], lineage: Lineage) -> list[_Change]:
    """Return where the matches have missed something: tokens in no match, and borders of matches that did not meet
    before.

    After the last match nothing was missed.
    """
    found = []
    end, before = num_cached, None
    for match in matches:
        if match.start > end or not lineage.continues(before, match):
            found.append(_Change(end, match.start))
        end, before = match.end, match
    return found


def _find_segment_rests(num_tokens: int, changes: Sequence[_Change], ends: Sequence[int]) -> list[tuple[int, int]]:
    """Return the range from each change to the end of its segment, whose tokens depend on the change.

    On a segment's border a deletion changes neither side.
    """
    borders = {0, *ends}
    ranges = []
    for change in changes:
        is_new = change.end > change.start
        if is_new or change.end not in borders:
            place = bisect_right(ends, change.end - 1 if is_new else change.end)
            ranges.append((change.end, ends[place] if place < len(ends) else num_tokens))
    return ranges


def _mark(why: NDArray[np.int8], ranges: Sequence[tuple[int, int]], reason: RecomputeReason) -> None:
    """Mark the tokens in these ranges that would be reused as computed."""
    for first, end in ranges:
        part = why[first:end]
        part[part < 0] = _REASONS.index(reason)


def _spend(why: NDArray[np.int8], budget: float) -> None:
    """Mark a share of the reused tokens as computed: those that follow changes most closely."""
    taken = np.flatnonzero(why < 0)
    run = np.flatnonzero(why >= 0)
    if not len(run) or not len(taken):
        return
    taken = taken[taken > run[0]]
    behind = taken - run[np.searchsorted(run, taken) - 1]
    count = round(budget * len(taken))
    chosen = taken[np.argsort(behind, kind="stable")[:count]]
    why[chosen] = _REASONS.index("budget")


def _split_reused(match: Match, why: NDArray[np.int8]) -> list[Match]:
    """Return the parts of a match that are still reused."""
    free = np.concatenate(([False], why[match.start : match.end] < 0, [False])).astype(np.int8)
    starts, ends = np.flatnonzero(np.diff(free) == 1), np.flatnonzero(np.diff(free) == -1)
    return [
        match.cut(match.start + int(first), match.start + int(end)) for first, end in zip(starts, ends, strict=True)
    ]
