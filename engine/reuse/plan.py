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
"""Prompts that are remembered: a change is one against the last turns of a conversation."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The tokens [source, source + length) of a record stood at `start` of a prompt."""

    start: int
    length: int
    record: int
    source: int


class Lineage:
    """The last prompts that took KV over, as parts of records.

    A prompt that takes over what such a one took over, and goes on behind it, changes nothing: what its parts missed
    of one another they had missed before.
    """

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self._prompts: deque[tuple[_Part, ...]] = deque(maxlen=most)

    def add(self, placed: Sequence[Match], record: int | None, own: Sequence[tuple[int, int]]) -> None:
        """A prompt took over `placed` and ran the half-open ranges `own`, which are in this record."""
        parts = [_Part(each.start, len(each.slots), each.record, each.source) for each in placed]
        if record is not None:
            parts += [_Part(first, end - first, record, first) for first, end in own]
        self._prompts.appendleft(tuple(sorted(parts, key=lambda part: part.start)))

    def continues(self, before: Match | None, match: Match) -> bool:
        """Whether a prompt that is remembered had a match where it stands now, behind the same token if any is given.

        Within one record that is so where the two were neighbours; without one before it, where it keeps its place.
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
        """Remember nothing."""
        self._prompts.clear()


def _find_position(parts: Sequence[_Part], record: int, source: int) -> int | None:
    """Where a record's token stood in a prompt of these parts."""
    for part in parts:
        if part.record == record and 0 <= source - part.source < part.length:
            return part.start + source - part.source
    return None


FEWEST_TOKENS = 8
"""A shorter match is run: what it saves is less than what a wrong context does."""

MAX_GENERATION = 3
"""A prompt that would take over KV of this generation takes nothing over: it is run exactly, and all is exact again.

To run the old tokens alone would not help: what they look back on makes them as old at once.
"""

LEAST_SAVED = 0.5
"""Share of the tokens behind the exact prefix that must be taken over, or none is: behind the first one that is, all
that is run is approximate and never shared, which later turns pay for. On recorded sessions without idle time between
the turns, 523 prompts of 5.4 million tokens, `fast` ran more than an exact prefix cache without this rule."""

_REASONS: tuple[RecomputeReason, ...] = ("changed", "segment", "budget", "asked", "tail")


@dataclass(frozen=True, slots=True, eq=False)
class ReusePlan:
    """What becomes of a prompt's tokens behind its exact prefix.

    num_exact: tokens up to here are exact once they are run: the prefix that was cached, and what follows it up to the
    first token that is taken over. placed: what is taken over, ascending; none of it overlaps. pending: positions of
    the tokens that are run, ascending, the last one among them. by_reason: those by why. generation: that of what is
    run behind `num_exact`: of what it looks back on, or one more where that has missed a change.
    """

    num_exact: int
    placed: tuple[Match, ...]
    pending: NDArray[np.int64]
    by_reason: Mapping[RecomputeReason, int]
    generation: int

    @property
    def num_placed(self) -> int:
        """Tokens that are taken over."""
        return sum(len(each.slots) for each in self.placed)


def plan_reuse(
    num_tokens: int, num_cached: int, matches: Sequence[Match], reuse: Reuse, lineage: Lineage | None = None
) -> ReusePlan:
    """Plan a prompt of `num_tokens`, of which the first `num_cached` have exact KV.

    `matches` ascend, do not overlap and lie behind the exact prefix, all but the last token at most. Every token is
    cached, placed or pending; with a budget of 1 all behind the prefix are pending, which is a full prefill. `lineage`
    tells where two matches meet that met in an earlier prompt.
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
    """Before the match that starts at `end` something is new, [start, end), or gone (then the two are equal)."""

    start: int
    end: int


def _find_changes(num_cached: int, matches: Sequence[Match], lineage: Lineage) -> list[_Change]:
    """Where the matches have missed something: what no match covers, and where two meet that had not met before.

    Behind the last match nothing was missed.
    """
    found = []
    end, before = num_cached, None
    for match in matches:
        if match.start > end or not lineage.continues(before, match):
            found.append(_Change(end, match.start))
        end, before = match.end, match
    return found


def _find_segment_rests(num_tokens: int, changes: Sequence[_Change], ends: Sequence[int]) -> list[tuple[int, int]]:
    """From each change to the end of the segment that it ends in: there stand conclusions about it.

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
    """Have the tokens in these ranges run that would be taken over."""
    for first, end in ranges:
        part = why[first:end]
        part[part < 0] = _REASONS.index(reason)


def _spend(why: NDArray[np.int8], budget: float) -> None:
    """Have a share of what would be taken over run: the tokens that follow changes most closely."""
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
    """The parts of a match that are taken over still."""
    free = np.concatenate(([False], why[match.start : match.end] < 0, [False])).astype(np.int8)
    starts, ends = np.flatnonzero(np.diff(free) == 1), np.flatnonzero(np.diff(free) == -1)
    return [
        match.cut(match.start + int(first), match.start + int(end)) for first, end in zip(starts, ends, strict=True)
    ]
