"""What a model is given of a file: regions of lines, what belongs to each, and an outline of the rest."""

from __future__ import annotations

from dataclasses import dataclass

from editor.types import ParsedEdit

Span = tuple[int, int]
"""Lines [first, end) of a file, counted from 0; empty for lines that go in before `first`."""


@dataclass(frozen=True, slots=True)
class Region:
    r"""Lines [first_line, end_line) of a file, counted from 0.

    `text` and `candidates` hold lines that each end with "\n": what stands there, and what would stand there under each
    reading of the edit, best first, every text once. `edit` is the part of the edit that belongs here; None is all of
    it, as it was sent. `num_above` and `num_below` are how many lines at the region's ends no reading touches; 0 at an
    end of the file.
    """

    first_line: int
    end_line: int
    text: str
    candidates: tuple[str, ...] = ()
    edit: ParsedEdit | None = None
    num_above: int = 0
    num_below: int = 0

    @property
    def num_lines(self) -> int:
        """How many lines of the file it holds."""
        return self.end_line - self.first_line


@dataclass(frozen=True, slots=True)
class Scope:
    """Regions in the order of the file, apart from one another; `whole` says that the only one is all of it.

    `outline` has the first lines of definitions outside of the regions, "" for the whole file.
    """

    regions: tuple[Region, ...]
    outline: str
    whole: bool
    num_lines: int
