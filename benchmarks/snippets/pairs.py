"""Real texts before and after an edit, whatever format the edit was recorded in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import Case, load


@dataclass(frozen=True, slots=True)
class Pair:
    """One file before and after an edit. `path` names it, for its language; "" where that is not known."""

    id: str
    path: str
    before: str
    after: str


def pairs(path: Path, min_lines: int = 0) -> list[Pair]:
    """Return the pairs of all cases at or below `path`, in their order, each once.

    `min_lines` is how many lines the text before must have. Cases that must be refused, that change nothing, or whose
    expected text is another program's policy or inexact in its blanks (`Case.inexact`, save EditEval, where it is only
    the final newline) hold no real pair and are left out, as are files that a patch creates, deletes or moves.
    """
    found: dict[tuple[str, str], Pair] = {}
    for case in load(path).cases:
        if isinstance(case, Case):
            if case.expects == "text" and case.shape != "unit_test" and (case.shape == "edit_eval" or not case.inexact):
                sides = {case.path: (case.original, case.expected)}
            else:
                sides = {}
        elif case.refused:
            sides = {}
        else:
            sides = {name: (text, case.expected[name]) for name, text in case.files.items() if name in case.expected}
        for name, (before, after) in sides.items():
            if before != after and before and after and before.count("\n") >= min_lines:
                found.setdefault((before, after), Pair(case.id, name, before, after))
    return list(found.values())
