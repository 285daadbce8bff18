"""What stood next to what in prompts that were put together of stored parts: where two parts met, nothing is new."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.reuse.types import Match

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

    def goes_on(self, before: Match | None, match: Match) -> bool:
        """Whether a prompt that is remembered had a match where it stands now, behind the same token if any is given.

        Within one record that is so where the two were neighbours; without one before it, where it keeps its place.
        """
        if before is None:
            return match.source == match.start or any(
                _position(parts, match.record, match.source) == match.start for parts in self._prompts
            )
        last = before.source + len(before.slots) - 1
        if match.record == before.record and match.source == last + 1:
            return True
        for parts in self._prompts:
            position = _position(parts, before.record, last)
            if position is not None and _position(parts, match.record, match.source) == position + 1:
                return True
        return False

    def forget(self) -> None:
        """Remember nothing."""
        self._prompts.clear()


def _position(parts: Sequence[_Part], record: int, source: int) -> int | None:
    """Where a record's token stood in a prompt of these parts."""
    for part in parts:
        if part.record == record and 0 <= source - part.source < part.length:
            return part.start + source - part.source
    return None
