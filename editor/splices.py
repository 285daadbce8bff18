"""The effect of one change on a file: certain (`Splice`), or open with its likely readings (`Open`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from editor.diff import LineOp, ops_of_changes
from editor.errors import format_span
from editor.types import Candidate, Rung, Unresolved

MAX_CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Splice:
    """Lines [start, end) of the text are replaced by `lines`; `done` marks a change whose result is already there.

    `again` are the lines that a change which is already applied would write once more, None if it cannot.
    `proven` says that a change is certainly applied, so that others of the edit may be applied.
    """

    start: int
    end: int
    lines: tuple[str, ...]
    rung: Rung
    done: bool = False
    again: tuple[str, ...] | None = None
    proven: bool = False

    @property
    def location(self) -> str:
        """Return 'line 3', or 'lines 3-5'; 'above line 3' if nothing is replaced."""
        if self.end <= self.start:
            return f"above line {self.start + 1}"
        return format_span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Option:
    """One reading of an uncertain change; `score` and `why` as in `Candidate`."""

    splice: Splice
    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Open:
    """A change that no rule decides: why, and its readings, the likeliest first."""

    unresolved: Unresolved
    options: tuple[Option, ...] = ()


Resolution = Splice | Open


def apply_splices(lines: Sequence[str], splices: Sequence[Splice]) -> list[str] | None:
    """Return the lines with all splices applied, those at one place in the given order; None if two overlap."""
    ordered = sorted((splice for splice in splices if not splice.done), key=lambda splice: (splice.start, splice.end))
    if any(below.start < above.end for above, below in pairwise(ordered)):
        return None
    merged: list[str] = []
    at = 0
    for splice in ordered:
        merged += lines[at : splice.start]
        merged += splice.lines
        at = splice.end
    return [*merged, *lines[at:]]


def build_ops(splices: Sequence[Splice], num_lines: int) -> tuple[LineOp, ...]:
    """Return the ops of splices that do not overlap, on `num_lines` lines; those at one place are one change."""
    changes = sorted((one.start, one.end, len(one.lines)) for one in splices if not one.done)
    return ops_of_changes(changes, num_lines)


def combine_candidates(lines: Sequence[str], resolutions: Sequence[Resolution]) -> tuple[Candidate, ...]:
    """Return the merged texts of the readings of all open changes; none if one of them has no reading.

    The likeliest reading of every change is among them, and those that differ from it in one change; best first.
    """
    found: dict[str, Candidate] = {}
    if all(isinstance(one, Splice) or one.options for one in resolutions):
        for chosen in islice(_list_choices(resolutions), 2 * MAX_CANDIDATES):
            merged = apply_splices(lines, [one.splice if isinstance(one, Option) else one for one in chosen])
            if merged is not None:
                text = "".join(line + "\n" for line in merged)
                score, why = 1.0, list[str]()
                for one in chosen:
                    if isinstance(one, Option):
                        score, why = score * one.score, [*why, one.why]
                found.setdefault(text, Candidate(text, score, "; ".join(why)))
    return tuple(sorted(found.values(), key=lambda one: -one.score)[:MAX_CANDIDATES])


def _list_choices(resolutions: Sequence[Resolution]) -> Iterator[list[Splice | Option]]:
    best = [one.options[0] if isinstance(one, Open) else one for one in resolutions]
    yield best
    for at, one in enumerate(resolutions):
        if isinstance(one, Open):
            for option in one.options[1:MAX_CANDIDATES]:
                yield [*best[:at], option, *best[at + 1 :]]
