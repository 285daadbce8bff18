"""Places in a file that are nearly the same as the one where a block of a sketch was anchored.

A block that is shown with a line of its twin's is anchored at the twin: in a test file where one case already has the
new argument, a snippet that adds it to the next case reads like the first one. So near twins are left to the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from editor.matching.index import LineIndex
from editor.matching.ladder import rstripped

_LIKE_A_TWIN = 0.75
_MAX_SHIFT = 12
# Lines that stand this often ("}", "return None") tell nothing about a place.
_MAX_OCCURRENCES = 200


def twin_of(
    index: LineIndex, block: Sequence[str], start: int, end: int, *, share: float = _LIKE_A_TWIN, at_least: int = 3
) -> int | None:
    """Return the first line (from 0) of a place like lines [start, end), where `block` was put; None if it has none.

    A place is a twin if that `share` of the block's lines, and at least `at_least`, stand there, in order and about as
    far apart.
    """
    rows = {at: rstripped(line) for at, line in enumerate(block) if line.strip()}
    keyed = index.by(rstripped)
    here = set(keyed.keys[start:end])
    num_here = sum(line in here for line in rows.values())
    wanted = max(at_least, share * num_here)
    if num_here < at_least:
        return None
    occurrences = {line: _outside(keyed.places.get(line, ()), start, end) for line in set(rows.values())}
    shift = min(_MAX_SHIFT, len(block) - min(len(block), end - start) + 1)
    votes: dict[int, set[int]] = defaultdict(set)
    for row, line in rows.items():
        if len(occurrences[line]) <= _MAX_OCCURRENCES:
            for at in occurrences[line]:
                for offset in range(at - row, at - row + shift + 1):
                    votes[offset].add(row)
    return min((max(0, offset) for offset, found in votes.items() if len(found) >= wanted), default=None)


def _outside(places: Sequence[int], start: int, end: int) -> list[int]:
    return [*places[: bisect_left(places, start)], *places[bisect_left(places, end) :]]
