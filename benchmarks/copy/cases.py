"""Cases of the copy benchmark: files of several lengths with several hunks, made from real edits.

Every length and number of hunks is one cell. The styles of the lazy snippets go round, cell by cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.snippets import STYLES, Pair, make_merge, make_snippet

LINES = (100, 300, 1000, 3000)
HUNKS = (1, 3, 10)

CHOICES = 4
"""Cases drawn for a cell: the first one whose file the model copies at all is measured."""

GOAL = "300x1"
"""The case of the project's goal: 300 lines, one hunk."""

FRESH_REQUEST = (
    "Write a Python module that keeps the books of a small library: books, members, loans and fines, with a class for "
    "each and a function that prints a report. Write code only."
)
"""What is asked for where nothing is to be copied."""


@dataclass(frozen=True, slots=True)
class CopyCase:
    """One file, its lazy snippet and the right result. `name` says lines and hunks, as in `--only`."""

    name: str
    path: str
    before: str
    after: str
    style: str
    edit: str

    @property
    def num_lines(self) -> int:
        """Lines of the file before the edit."""
        return self.before.count("\n")

    def to_json(self) -> dict[str, Any]:
        """Return the form in which it travels."""
        return asdict(self)


def list_cells(only: Sequence[str] = ()) -> list[tuple[int, int]]:
    """Lengths and numbers of hunks, the goal's first; with `only`, those that it names."""
    names = {f"{lines}x{hunks}": (lines, hunks) for lines in LINES for hunks in HUNKS}
    in_order = sorted(names, key=lambda name: (name != GOAL, names[name][1] > 1, names[name]))
    return [names[name] for name in in_order if not only or name in only]


def draw_cases(pairs: Sequence[Pair], asked: Iterable[tuple[int, int]], seed: int) -> list[Iterator[CopyCase]]:
    """Return cases to choose from for each cell; they raise ValueError where the pairs are too few."""
    return [_draw_cases(pairs, lines, hunks, seed, style) for style, (lines, hunks) in enumerate(asked)]


def _draw_cases(pairs: Sequence[Pair], lines: int, hunks: int, seed: int, style: int) -> Iterator[CopyCase]:
    """Yield cases of one cell, each with another edit in another style."""
    for number in range(CHOICES):
        merged = replace(make_merge(pairs, lines, hunks, seed + number), id=f"{lines}x{hunks}")
        first = (style + number) % len(STYLES)
        case = _make_case(merged, STYLES[first:] + STYLES[:first], seed)
        if case is not None:
            yield case


def _make_case(pair: Pair, styles: Sequence[str], seed: int) -> CopyCase | None:
    """Make a case in the first style that can say the edit, if any can."""
    for style in styles:
        edit = make_snippet(pair.before, pair.after, pair.path, style, seed)
        if edit is not None:
            return CopyCase(pair.id, pair.path, pair.before, pair.after, style, edit)
    return None
