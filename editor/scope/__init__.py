r"""Regions of a file for the model: cut out of the text and spliced back.

A region's lines each end with "\n", so that no lines and one blank line differ. Whether the file's last line ends with
one is not part of a region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from editor.diff import LineOp, line_opcodes
from editor.types import ParsedEdit

Span = tuple[int, int]
"""Lines [first, end) of a file, counted from 0; empty for lines that go in before `first`."""


@dataclass(frozen=True, slots=True)
class Region:
    r"""Lines [first_line, end_line) of a file, counted from 0.

    `text` and `candidates` hold lines that each end with "\n": the present lines, and the lines under each reading of
    the edit, best first, every text once. `edit` is the part of the edit that belongs to the region; None is the whole
    edit as it was sent. `num_above` and `num_below` count the lines at the region's ends that no reading changes; 0 at
    an end of the file.
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
        """The number of lines of the file in the region."""
        return self.end_line - self.first_line


@dataclass(frozen=True, slots=True)
class Scope:
    """The regions of a file in order, without overlap; `whole` says that the only one is the whole file.

    `outline` has the first lines of definitions outside of the regions, "" for the whole file.
    """

    regions: tuple[Region, ...]
    outline: str
    whole: bool
    num_lines: int


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text without their "\n"; an empty text has none."""
    return text.removesuffix("\n").split("\n") if text else []


def join_lines(lines: Sequence[str]) -> str:
    r"""Return lines as text, each with a "\n"."""
    return "".join(line + "\n" for line in lines)


def splice(text: str, regions: Sequence[Region], answers: Sequence[str]) -> str:
    r"""Return the text with each region replaced by its answer; the regions are in order and do not overlap.

    An answer whose last line lacks its "\n" gets one. The text ends with a newline if it did before.
    """
    lines, parts, at = split_lines(text), [], 0
    for region, answer in zip(regions, answers, strict=True):
        parts += [
            join_lines(lines[at : region.first_line]),
            answer,
            "" if answer.endswith("\n") or not answer else "\n",
        ]
        at = region.end_line
    spliced = "".join((*parts, join_lines(lines[at:])))
    return spliced if text.endswith("\n") else spliced.removesuffix("\n")


def cut(text: str, other: str, regions: Sequence[Region]) -> tuple[str, ...]:
    """Return the lines of `other`, a changed text, that correspond to each region of `text`.

    This is exact if the borders of the regions are between lines that both texts have. New lines of a change across a
    border count to the region.
    """
    ops = line_opcodes(split_lines(text), split_lines(other))
    lines = split_lines(other)
    spans = [(_map_start(ops, region.first_line), _map_end(ops, region.end_line, len(lines))) for region in regions]
    return tuple(join_lines(lines[first:end]) for first, end in spans)


def is_confined(text: str, other: str, regions: Sequence[Region]) -> bool:
    """Return whether two texts differ only inside of the regions; the final newline does not count."""
    return split_lines(splice(text, regions, cut(text, other, regions))) == split_lines(other)


def _map_start(ops: Sequence[LineOp], border: int) -> int:
    """Return where a region begins in the other text; lines inserted exactly there belong to the region."""
    op = next((op for op in ops if op.a_start < border <= op.a_end), None)
    if op is None:
        return 0
    if op.equal:
        return op.b_start + border - op.a_start
    return op.b_end if border == op.a_end else op.b_start


def _map_end(ops: Sequence[LineOp], border: int, num_lines: int) -> int:
    """Return where a region ends in the other text; lines inserted exactly there belong to the region."""
    op = next((op for op in ops if op.a_start <= border < op.a_end), None)
    if op is None:
        return num_lines
    if op.equal:
        return op.b_start + border - op.a_start
    return op.b_start if border == op.a_start else op.b_end
