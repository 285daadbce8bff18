"""The states and steps of a path through a snippet and its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

# What a path did last. UNBOUND: inserted lines below a gap. CUT: deletes lines below a gap. ELIDED: skips lines without
# a marker. OUTSIDE: skips lines less indented than the marker.
BOUND, NEW, UNBOUND, DELETED, CUT, GAP, ELIDED, OUTSIDE = range(8)

Kind = Literal["match", "sub", "insert", "delete", "skip", "mark", "drop", "rewrite"]


class AlignmentStep(NamedTuple):
    """One step: the items [item, item_end) and the file lines [line, line_end) that it takes, and the state before."""

    kind: Kind
    item: int
    item_end: int
    line: int
    line_end: int
    state: int


@dataclass(frozen=True, slots=True)
class Path:
    """An alignment of a whole snippet with a whole file, and its cost."""

    cost: float
    steps: tuple[AlignmentStep, ...]
