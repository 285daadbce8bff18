"""Which lines a merge took out of a file, and whether the edit shows that they should go.

A SEARCH/REPLACE edit shows the lines that it searches. A sketch shows a removal where two of its neighbouring literal
lines are neighbours in the result: whatever stood between them was meant to go. What a placeholder stands for, and what
lies before the first and behind the last line of a sketch, is never shown to go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from editor.alignment import LineOp, line_opcodes
from editor.errors import TooMuchWorkError
from editor.matching.index import KeyedLines
from editor.matching.ladder import indent
from editor.types import ParsedEdit, Sketch

# A rewrite that ends a sketch may be this many times shorter than what it stands for.
_MAX_REWRITE = 2
_MAX_SLIDE = 100


@dataclass(frozen=True, slots=True)
class Removal:
    """Lines [start, end) of the original that are gone, and what stands `instead`.

    `unshown` are those of them that the edit does not show to go; `shown` tells that there are none.
    """

    start: int
    end: int
    lines: tuple[str, ...]
    instead: tuple[str, ...]
    unshown: tuple[str, ...]
    at_end: bool

    @property
    def shown(self) -> bool:
        """Tell whether the edit accounts for all of it."""
        return not any(line.strip() for line in self.unshown)


def removals(original: Sequence[str], merged: Sequence[str], edit: ParsedEdit) -> tuple[Removal, ...]:
    """Return what is gone, in text order. A line that was only re-indented is not gone."""
    old, new = [line.strip() for line in original], [line.strip() for line in merged]
    ops = [op for op in line_opcodes(old, new) if not op.equal and any(old[op.a_start : op.a_end])]
    last = max((at for at, line in enumerate(old) if line), default=-1)
    unshown = _unshown_of_sketch(original, new, ops, edit.changes) if isinstance(edit.changes, Sketch) else None
    if unshown is None:
        unshown = _unshown_of_blocks(old, ops, edit)
    return tuple(
        Removal(
            op.a_start,
            op.a_end,
            tuple(original[op.a_start : op.a_end]),
            tuple(merged[op.b_start : op.b_end]),
            lines,
            op.a_start <= last < op.a_end,
        )
        for op, lines in zip(ops, unshown, strict=True)
    )


def _unshown_of_blocks(old: list[str], ops: Sequence[LineOp], edit: ParsedEdit) -> list[tuple[str, ...]]:
    """Every line of a SEARCH part accounts for one removed line."""
    named = Counter(line.strip() for line in edit.searched_lines)
    unshown: list[tuple[str, ...]] = []
    for op in ops:
        left: list[str] = []
        for line in old[op.a_start : op.a_end]:
            if named[line] > 0:
                named[line] -= 1
            else:
                left.append(line)
        unshown.append(tuple(left))
    return unshown


def _unshown_of_sketch(
    original: Sequence[str], new: list[str], ops: Sequence[LineOp], sketch: Sketch
) -> list[tuple[str, ...]]:
    shown = _Shown(original, [line.strip() for line in original], new, _shown_seams(new, sketch), sketch)
    return [() if shown.holds(op) else tuple(original[op.a_start : op.a_end]) for op in ops]


def _shown_seams(new: list[str], sketch: Sketch) -> frozenset[int]:
    """Return the seams that the sketch shows: `at` is the seam above line `at` of the result.

    Blank lines are passed over, as models add and drop them. What is past the bound of places shows no seam.
    """
    solid = [at for at, line in enumerate(new) if line]
    found = KeyedLines([new[at] for at in solid])
    seams: set[int] = set()
    blocks = (tuple(line.strip() for line in block if line.strip()) for block in sketch.blocks)
    with suppress(TooMuchWorkError):
        for literal in dict.fromkeys(block for block in blocks if len(block) > 1):
            for place in _neighbours(literal, found):
                seams.update(range(solid[place] + 1, solid[place + 1] + 1))
    return frozenset(seams)


def _neighbours(literal: Sequence[str], found: KeyedLines) -> Iterator[int]:
    """Yield where two lines of a block stand one below the other, the block being in one piece or not."""
    whole = found.starts(literal)
    if whole:
        # Alignment alone would scatter closing brackets over the file.
        reached = 0
        for start in whole:
            yield from range(max(start, reached), start + len(literal) - 1)
            reached = start + len(literal) - 1
        return
    for op in line_opcodes(literal, found.keys):
        if op.equal:
            yield from range(op.b_start, op.b_end - 1)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a sketch shows of the way from the original to the result, whose lines are stripped in `old` and `new`."""

    original: Sequence[str]
    old: list[str]
    new: list[str]
    seams: frozenset[int]
    sketch: Sketch

    def holds(self, op: LineOp) -> bool:
        """Tell whether all of a replacement lies inside the sketch: the seams around and within what stands instead."""
        seams, new, sketch = self.seams, self.new, self.sketch
        if not all(at in seams for at in range(op.b_start + 1, op.b_end)):
            return False
        above, below = op.b_start in seams, op.b_end in seams
        if above and below:
            return op.b_start < op.b_end or self._holds_cut(op)
        # Where the sketch and the result begin, or end, together, the border is shown as well; but only for lines that
        # are rewritten: a careless snippet ends without a placeholder and means the rest of the file to stay.
        rewritten = sum(map(bool, self.old[op.a_start : op.a_end])) <= _MAX_REWRITE * sum(
            map(bool, new[op.b_start : op.b_end])
        )
        first = not sketch.opens_elided and not any(islice(new, op.b_start))
        last = not sketch.closes_elided and not any(islice(reversed(new), len(new) - op.b_end))
        return rewritten and (above or first) and (below or last)

    def _holds_cut(self, op: LineOp) -> bool:
        """Tell whether a deletion is shown, cut where a person would cut it.

        Of two methods that end alike, an alignment may as well drop the end of the first and the head of the second. So
        a deletion is slid to where it begins with the least indented line that is not blank and not a closing bracket,
        as in git's indent heuristic (Michael Haggerty, 2016), which also slides no further than 100 lines.
        """
        old = self.old
        down = 0
        while down < _MAX_SLIDE and op.a_end + down < len(old) and old[op.a_start + down] == old[op.a_end + down]:
            down += 1
        up = 0
        while up < _MAX_SLIDE and op.a_start - up > 0 and old[op.a_start - up - 1] == old[op.a_end - up - 1]:
            up += 1
        ranks = {slide: _rank(self.original[op.a_start + slide]) for slide in range(-up, down + 1)}
        best = min(ranks.values())
        return all(op.b_start + slide in self.seams for slide, rank in ranks.items() if rank == best)


def _rank(line: str) -> tuple[bool, int]:
    return not any(char.isalnum() for char in line), len(indent(line).expandtabs(4))
