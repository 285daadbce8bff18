r"""Regions of a text cut out of it and put back: what lies outside of them stays as it is, byte for byte.

Regions are handed around as lines that each end with "\n", so that no lines and one blank line are told apart; whether
the file's last line ends so is the file's own matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from editor.alignment import LineOp, line_opcodes
from editor.scope.types import Region


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text without their "\n"; an empty text has none."""
    return text.removesuffix("\n").split("\n") if text else []


def joined(lines: Sequence[str]) -> str:
    r"""Return lines as text, each with a "\n"."""
    return "".join(line + "\n" for line in lines)


def splice(text: str, regions: Sequence[Region], answers: Sequence[str]) -> str:
    r"""Return the text with an answer in the place of each region; the regions are in order and do not overlap.

    A last line of an answer without "\n" is given one; the text ends with a newline if it did.
    """
    lines, parts, at = lines_of(text), [], 0
    for region, answer in zip(regions, answers, strict=True):
        parts += [joined(lines[at : region.first_line]), answer, "" if answer.endswith("\n") or not answer else "\n"]
        at = region.end_line
    spliced = "".join((*parts, joined(lines[at:])))
    return spliced if text.endswith("\n") else spliced.removesuffix("\n")


def cut(text: str, other: str, regions: Sequence[Region]) -> tuple[str, ...]:
    """Return what stands in `other`, a changed text, in the place of each region of `text`.

    Exact where the regions' borders lie between lines that both texts have; where a change runs across a border, what
    it writes counts to the region.
    """
    ops = line_opcodes(lines_of(text), lines_of(other))
    lines = lines_of(other)
    spans = [(_above(ops, region.first_line), _below(ops, region.end_line, len(lines))) for region in regions]
    return tuple(joined(lines[first:end]) for first, end in spans)


def holds(text: str, other: str, regions: Sequence[Region]) -> bool:
    """Tell whether a text can be made of another by changing nothing but its regions; the final newline aside."""
    return lines_of(splice(text, regions, cut(text, other, regions))) == lines_of(other)


def _above(ops: Sequence[LineOp], border: int) -> int:
    """Return where in the other text a region begins; lines that go in just there are the region's."""
    op = next((op for op in ops if op.a_start < border <= op.a_end), None)
    if op is None:
        return 0
    if op.equal:
        return op.b_start + border - op.a_start
    return op.b_end if border == op.a_end else op.b_start


def _below(ops: Sequence[LineOp], border: int, num_lines: int) -> int:
    """Return where in the other text a region ends; lines that go in just there are the region's."""
    op = next((op for op in ops if op.a_start <= border < op.a_end), None)
    if op is None:
        return num_lines
    if op.equal:
        return op.b_start + border - op.a_start
    return op.b_start if border == op.a_start else op.b_end
