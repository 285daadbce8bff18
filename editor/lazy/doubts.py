"""Doubts about a placed block: what a careless snippet, or one that hides a deletion, may have meant instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from editor.lazy.edges import DoubtError, Edge, key, quoted
from editor.lazy.placements import Block, Placement
from editor.lazy.showing import can_anchor
from editor.lazy.twins import twin_of
from editor.matching.index import LineIndex, starts_in
from editor.matching.ladder import indent, rstripped
from editor.wording import span_of

_MIN_REPEATED = 2
_MIN_COPIED_CHARS = 10
# So many times its length below its place, a repeated tail is taken to be the same one.
_FAR = 4


def refuse_twin(index: LineIndex, block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if another place in the file is nearly the same."""
    twin = twin_of(index, block.lines, placement.start, placement.end)
    if twin is not None:
        where = span_of(placement.start, placement.end)
        raise DoubtError("ambiguous", f"The block fits {where}, but line {twin + 1} and below are nearly the same.", 2)


def refuse_rival(index: LineIndex, block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if a block that stands in the file already may have been meant for a place like it.

    Nothing is lost by it, but 'already applied' would be said of an edit that is not.
    """
    solid = [line for line in block.lines if line.strip()]
    rival = twin_of(index, block.lines, placement.start, placement.end, share=0.5, at_least=2)
    if len(solid) == 1:
        places = range(placement.start, placement.end)
        alike = (at for at, line in enumerate(index.lines) if at not in places and _is_about(line, solid[0]))
        rival = next(alike, None)
    if rival is not None:
        where = span_of(placement.start, placement.end)
        raise DoubtError("ambiguous", f"The block stands at {where}, but may be meant for line {rival + 1}.", 2)


def _is_about(line: str, other: str) -> bool:
    return key(line) == key(other) != "" and indent(line) == indent(other)


def refuse_other_gap(lines: Sequence[str], block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if blank lines at the end of a block, too many for layout, are not those of the file there.

    They may be the context of lines to be deleted.
    """
    above, below = list(lines[: placement.start])[::-1], lines[placement.end :]
    for gap, inner, outer, edge in (
        (block.gap_above, block.lines[0], above, placement.start),
        (block.gap_below, block.lines[-1], below, placement.end - 1),
    ):
        blanks = next((at for at, line in enumerate(outer) if line.strip()), len(outer))
        held = 0 <= edge < len(lines) and rstripped(lines[edge]) == rstripped(inner)
        if gap > 1 and held and gap != blanks:
            raise DoubtError(
                "open_intent", f"{gap} blank lines stand next to {quoted(inner)}, {blanks} in the file.", 2
            )


def refuse_copies(new: Sequence[str], index: LineIndex) -> None:
    """Raise `DoubtError` if a new line stands in the file just once: it may be moved, and its place left out."""
    telling = {line.strip() for line in new if sum(map(str.isalnum, line)) >= _MIN_COPIED_CHARS}
    places = index.by(str.strip).places if telling else {}
    copied = min(
        (line for line in telling if len(places.get(line, ())) == 1), key=lambda line: places[line], default=None
    )
    if copied is not None:
        raise DoubtError("open_intent", f"The new line {quoted(copied)} stands elsewhere: it may be moved.", 2)


def refuse_known(index: LineIndex, block: Block, edge: Edge) -> None:
    """Raise `DoubtError` if a new line stands twice in the block, or elsewhere in the file: it may be an old one."""
    counts = Counter(line.strip() for line in block.lines)
    again = next((line for line in edge.new if can_anchor(line) and counts[line.strip()] > 1), None)
    if again is not None:
        raise DoubtError("ambiguous", f"The line {quoted(again)} stands twice in the edit.", 2)
    outer = min(len(indent(line)) for line in edge.new if line.strip())
    shown = {line.strip() for line in edge.new if len(indent(line)) == outer and can_anchor(line)}
    places = index.by(str.strip).places
    known = min((line for line in shown if line in places), key=lambda line: places[line], default=None)
    if known is not None:
        raise DoubtError("ambiguous", f"The line {quoted(known)} stands elsewhere: it may be context, not new.", 2)


def refuse_same_neighbours(lines: Sequence[str], at: int) -> None:
    """Raise `DoubtError` if the lines on both sides of a block's border are equal: it may as well end at the other."""
    if 0 < at < len(lines) and lines[at].strip() and rstripped(lines[at - 1]) == rstripped(lines[at]):
        raise DoubtError("ambiguous", f"The line {quoted(lines[at])} stands on both sides of the end of a block.", 2)


def refuse_repeated_tail(lines: list[str], start: int, end: int) -> None:
    """Raise `DoubtError` if the last lines of a block stand again right below: what lies between may be meant to go."""
    tail = [rstripped(line) for line in lines[start:end]]
    if sum(map(can_anchor, tail)) < _MIN_REPEATED:
        return
    below = [rstripped(line) for line in lines[end : end + _FAR * len(tail)]]
    if next(starts_in(below, tail), None) is not None:
        raise DoubtError("ambiguous", f"The last lines of the block, {start + 1}-{end}, stand again right below.", 2)
