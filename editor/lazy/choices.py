"""What a lazy snippet leaves open, and how one reading of it answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choices:
    """How one reading answers what a snippet leaves open.

    `keep_unshown`: a file's units between two neighbours of the snippet stay. `early`: new units between two markers go
    to the first place that they can have, not the last. `move`: units in another order than the file's are moved, not
    changed in place. `bare`: the file's comments above a unit that the snippet shows without any go.
    """

    keep_unshown: bool = False
    early: bool = False
    move: bool = False
    bare: bool = False


@dataclass(slots=True)
class Decisions:
    """Which questions came up while weaving, so that only readings that differ are tried.

    `unshown`, `placed`, `moved` and `leads` ask for `keep_unshown`, `early`, `move` and `bare`. `moved_together` tells
    that a unit in another order is shown next to a neighbour, no marker between them: then it is meant to move.
    """

    unshown: bool = False
    placed: bool = False
    moved: bool = False
    moved_together: bool = False
    leads: bool = False
