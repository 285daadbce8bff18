"""What the lines of a snippet show of the lines of a file: all of them, or each in another form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rapidfuzz import fuzz

from editor.alignment import LineOp, line_opcodes
from editor.lazy.edges import same_field
from editor.matching.ladder import indent, rstripped

_MIN_ANCHOR_CHARS = 3
# Per cent of rapidfuzz's ratio that a line must share with the one whose new form it is.
_SAME_LINE = 50


def with_all_of(hidden: Sequence[str], shown: Sequence[str]) -> list[str] | None:
    """Return `shown` in the file's spelling if it holds all `hidden` lines in their order, else None."""
    merged = list(shown)
    at = 0
    for line in hidden:
        while at < len(shown) and rstripped(shown[at]) != rstripped(line):
            at += 1
        if at == len(shown):
            return None
        merged[at] = line
        at += 1
    return merged


def in_other_form(hidden: Sequence[str], shown: Sequence[str]) -> bool:
    """Tell whether each hidden line that is not shown stands there changed, about the same name and no line more."""
    return all(
        op.equal or _same_lines(hidden, shown, op)
        for op in line_opcodes([rstripped(line) for line in hidden], [rstripped(line) for line in shown])
    )


def _same_lines(hidden: Sequence[str], shown: Sequence[str], op: LineOp) -> bool:
    if op.a_end - op.a_start != op.b_end - op.b_start:
        return False
    pairs = zip(hidden[op.a_start : op.a_end], shown[op.b_start : op.b_end], strict=True)
    return all(
        same_field(have, sent) and indent(have) == indent(sent) and fuzz.ratio(have, sent) >= _SAME_LINE
        for have, sent in pairs
    )


def added(gap: Sequence[str], hidden: Sequence[str]) -> list[str]:
    left = Counter(hidden)
    left.subtract(gap)
    return [line for line in gap if left[line] < 0]


def unique_lines(lines: Sequence[str]) -> frozenset[str]:
    counts = Counter(rstripped(line) for line in lines)
    return frozenset(line for line, count in counts.items() if count == 1 and can_anchor(line))


def can_anchor(line: str) -> bool:
    return sum(char.isalnum() for char in line) >= _MIN_ANCHOR_CHARS
