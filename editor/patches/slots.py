"""Slots: hunks with all the places where they may go."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from editor.matching.indentation import Mapping
from editor.matching.ladder import Places
from editor.types import Replacement, Rung

Rule = Literal["unique", "hint", "scope", "order"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A hunk with all the places of its lines: those of `before`, or of `after` where it is `done` already.

    `chosen` is one of `starts` once a `rule` has decided. The first `lead` and last `trail` lines are context. `proven`
    says that a hunk that is done is held by its context, or line. `told` says that the new lines of one that is not
    found to the letter stand in the file; `is_twin` that its places may then be like the one that is meant.
    """

    number: int
    change: Replacement
    starts: tuple[int, ...]
    rung: Rung
    mappings: tuple[Mapping, ...]
    lead: int
    trail: int
    done: bool = False
    chosen: int | None = None
    rule: Rule | None = None
    proven: bool = False
    told: str = ""
    is_twin: bool = False

    @property
    def size(self) -> int:
        """Return the number of lines that stand in the file."""
        return len(self.change.after if self.done else self.change.before)

    @property
    def line(self) -> int | None:
        """Return the line index that the hunk gives."""
        return self.change.hint.line

    @property
    def context(self) -> tuple[int, int]:
        """Return how many lines of context there are above and below; repeated lines may count on both sides."""
        before, after = self.change.before, self.change.after
        return num_common(before, after), num_common(before[::-1], after[::-1])

    @property
    def added(self) -> tuple[str, ...]:
        """Return the new lines without those of context."""
        return self.without_context(self.change.after)

    def without_context(self, after: tuple[str, ...]) -> tuple[str, ...]:
        """Return the new lines, in whatever spelling they come, less the context above and below."""
        return after[self.lead : len(after) - self.trail]

    def core(self, start: int) -> tuple[int, int]:
        """Return the range of lines at a place that are not context."""
        return start + self.lead, start + self.size - self.trail

    def stands_at(self, start: int) -> bool:
        """Tell whether the lines stand at a line."""
        row = bisect_left(self.starts, start)
        return row < len(self.starts) and self.starts[row] == start

    def at(self, start: int, rule: Rule) -> Slot:
        """Return the slot with a place decided."""
        return replace(self, chosen=start, rule=rule)

    def between(self, low: int, high: int) -> Slot:
        """Return the slot with its places in [low, high] only, and none decided."""
        kept = slice(bisect_left(self.starts, low), bisect_right(self.starts, high))
        if kept == slice(0, len(self.starts)):
            return replace(self, chosen=None, rule=None)
        return replace(self, starts=self.starts[kept], mappings=self.mappings[kept], chosen=None, rule=None)

    def narrowed(self, starts: Collection[int]) -> Slot:
        """Return the slot with no other places than these, and none decided."""
        kept = [bisect_left(self.starts, start) for start in sorted(starts)]
        mappings = tuple(self.mappings[row] for row in kept)
        return replace(self, starts=tuple(sorted(starts)), mappings=mappings, chosen=None, rule=None)


def slot_of(number: int, change: Replacement, places: Places, *, done: bool = False) -> Slot:
    """Return the slot of a hunk; a line is context of one side only, of the upper one if both could have it."""
    lead = num_common(change.before, change.after)
    most = min(len(change.before), len(change.after)) - lead
    trail = min(num_common(change.before[::-1], change.after[::-1]), most)
    return Slot(number, change, places.starts, places.rung, places.shifts, lead, trail, done)


def num_common(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many lines two runs begin with alike."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
