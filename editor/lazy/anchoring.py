"""One block of a sketch bound to its place in the file by lines that stand just once, or not at all.

Between two anchors a block shows everything: the file's lines there must all be among the block's, in order, or stand
there in another form one by one (`timeout: 30` for `timeout: 20`). Beyond the outermost anchors lie the edges
(`editor/lazy/edges.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rapidfuzz import fuzz

from editor.alignment import LineOp, line_opcodes
from editor.lazy.edges import (
    DoubtError,
    Edge,
    check_addition,
    check_edge,
    is_closing,
    key,
    quoted,
    read_edge,
    same_field,
)
from editor.lazy.twins import twin_of
from editor.matching.ladder import find, indent, rstripped
from editor.wording import span_of

_MIN_ANCHOR_CHARS = 3
_MIN_REPEATED = 2
_MIN_COPIED_CHARS = 10
# So many times its length below its place, a repeated tail is taken to be the same one.
_FAR = 4
# Per cent of rapidfuzz's ratio that a line must share with the one whose new form it is.
_SAME_LINE = 50


@dataclass(frozen=True, slots=True)
class Block:
    """One block without the blank lines next to placeholders; `gap_*` tell how many there were."""

    lines: tuple[str, ...]
    gap_above: int
    gap_below: int
    open_above: bool
    open_below: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Lines [start, end) of the file become `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]


def place(lines: list[str], floor: int, block: Block, unique: frozenset[str]) -> Placement:
    """Return what one block does to the file from line `floor` on; raises `DoubtError`."""
    anchors = _anchors(lines, block, unique)
    if not anchors and not block.open_below:
        return _place_at_end(lines, floor, block)
    if not anchors:
        raise DoubtError("ambiguous", f"No line of the block {quoted(block.lines[0])} stands just once in the file.")
    places = [place for _, place in anchors]
    if places[0] < floor or any(low >= high for low, high in pairwise(places)):
        raise DoubtError("open_intent", f"The lines of the block {quoted(block.lines[0])} stand in another order.")
    start, above = _upper_edge(lines, floor, block, *anchors[0])
    end, below = _lower_edge(lines, block, *anchors[-1])
    return Placement(start, end, (*above, *_between(lines, block, anchors), *below))


def refuse_twin(lines: list[str], block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if another place in the file is nearly the same."""
    twin = twin_of(lines, block.lines, placement.start, placement.end)
    if twin is not None:
        where = span_of(placement.start, placement.end)
        raise DoubtError("ambiguous", f"The block fits {where}, but line {twin + 1} and below are nearly the same.", 2)


def refuse_rival(lines: list[str], block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if a block that stands in the file already may have been meant for a place like it.

    Nothing is lost by it, but 'already applied' would be said of an edit that is not.
    """
    solid = [line for line in block.lines if line.strip()]
    rival = twin_of(lines, block.lines, placement.start, placement.end, share=0.5, at_least=2)
    if len(solid) == 1:
        places = range(placement.start, placement.end)
        alike = (at for at, line in enumerate(lines) if at not in places and _is_about(line, solid[0]))
        rival = next(alike, None)
    if rival is not None:
        where = span_of(placement.start, placement.end)
        raise DoubtError("ambiguous", f"The block stands at {where}, but may be meant for line {rival + 1}.", 2)


def _is_about(line: str, other: str) -> bool:
    return key(line) == key(other) != "" and indent(line) == indent(other)


def _anchors(lines: list[str], block: Block, unique: frozenset[str]) -> list[tuple[int, int]]:
    """Return (line of the block, line of the file) of all anchors."""
    wanted = {rstripped(line): at for at, line in enumerate(block.lines) if rstripped(line) in unique}
    found = [(wanted[line], at) for at, line in enumerate(map(rstripped, lines)) if line in wanted]
    if found:
        return sorted(found)
    # Lines that each stand often can still stand together just once.
    whole = find(lines, block.lines) if any(can_anchor(line) for line in block.lines) else None
    if whole is None or whole.rung == "reindent" or len(whole.starts) != 1:
        return []
    return [(at, whole.starts[0] + at) for at in range(len(block.lines))]


def _between(lines: list[str], block: Block, anchors: list[tuple[int, int]]) -> list[str]:
    """Return the lines from the first anchor to the last, nothing of the file left out."""
    merged = [lines[anchors[0][1]]]
    for (row, place), (next_row, next_place) in pairwise(anchors):
        hidden = lines[place + 1 : next_place]
        shown = block.lines[row + 1 : next_row]
        gap = with_all_of(hidden, shown)
        if gap is None and in_other_form(hidden, shown):
            merged += [*shown, lines[next_place]]
            continue
        if gap is None:
            raise DoubtError(
                "open_intent",
                f"The edit shows what is to stand between {quoted(lines[place])} and {quoted(lines[next_place])}, "
                f"and not {span_of(place + 1, next_place)} of the file.",
            )
        _refuse_copies(added(gap, hidden), lines)
        check_addition(added(gap, hidden), lines, place + 1)
        merged += [*gap, lines[next_place]]
    return merged


def _upper_edge(lines: list[str], floor: int, block: Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block begins in the file, and its lines above the first anchor."""
    inner, outer = block.lines[:row][::-1], lines[floor:place][::-1]
    if not block.open_above and not _begins_with(outer, inner):
        head = with_all_of(lines[:place], block.lines[:row])
        if head is None:
            raise DoubtError("open_intent", f"Nothing says where the first line {quoted(block.lines[0])} belongs.")
        check_addition(added(head, lines[:place]), lines, place)
        return 0, head
    if block.open_above and inner and is_closing(block.lines[0]):
        raise DoubtError("open_intent", f"The edit shows of what ends above it only {quoted(block.lines[0])}.", 2)
    edge = read_edge(inner, outer, lines[place], upward=True)
    start, above = _checked_upper(lines, floor, block, edge, place)
    if block.open_above:
        _refuse_same_neighbours(lines, start)
    elif any(line.strip() for line in lines[:start]):
        raise DoubtError("open_intent", f"The edit begins with line {start + 1} of the file, without a placeholder.", 2)
    return start, above


def _checked_upper(lines: list[str], floor: int, block: Block, edge: Edge, place: int) -> tuple[int, list[str]]:
    start = place - edge.consumed
    kept = lines[start:place]
    if not edge.new:
        return start, kept
    _refuse_repeated(lines, block, edge)
    check_edge(edge, lines[floor:place][::-1], upward=True, gap=block.gap_above > 0)
    check_addition(edge.new, lines, start)
    gap = [""] if block.gap_above and start > 0 and lines[start - 1].strip() else []
    return start, [*gap, *edge.new, *kept]


def _lower_edge(lines: list[str], block: Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block ends in the file, and its lines below the last anchor."""
    inner, outer = block.lines[row + 1 :], lines[place + 1 :]
    if not block.open_below and not _begins_with(outer, inner):
        tail = with_all_of(outer, inner)
        if tail is None:
            raise DoubtError("open_intent", f"Nothing says what follows the last line {quoted(block.lines[-1])}.")
        check_addition(added(tail, outer), lines, place + 1)
        return len(lines), tail
    edge = read_edge(inner, outer, lines[place], upward=False)
    end = place + 1 + edge.consumed
    _refuse_repeated_tail(lines, place + 1, end)
    if block.open_below:
        _refuse_same_neighbours(lines, end)
    if not block.open_below and any(line.strip() for line in lines[end:]):
        raise DoubtError("open_intent", f"The edit ends with line {end} of the file, without a placeholder.", 2)
    kept = lines[place + 1 : end]
    if not edge.new:
        return end, kept
    _refuse_repeated(lines, block, edge)
    check_edge(edge, outer, upward=False, gap=block.gap_below > 0)
    check_addition(edge.new, lines, end)
    gap = [""] if block.gap_below and end < len(lines) and lines[end].strip() else []
    return end, [*kept, *edge.new, *gap]


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


def _refuse_copies(new: Sequence[str], lines: Sequence[str]) -> None:
    """Raise `DoubtError` if a new line stands in the file just once: it may be moved, and its place left out."""
    telling = {line.strip() for line in new if sum(map(str.isalnum, line)) >= _MIN_COPIED_CHARS}
    counts = Counter(line.strip() for line in lines if line.strip() in telling)
    copied = next((line for line, count in counts.items() if count == 1), None)
    if copied is not None:
        raise DoubtError("open_intent", f"The new line {quoted(copied)} stands elsewhere: it may be moved.", 2)


def _refuse_repeated(lines: Sequence[str], block: Block, edge: Edge) -> None:
    """Raise `DoubtError` if a new line stands twice in the block, or elsewhere in the file: it may be an old one."""
    counts = Counter(line.strip() for line in block.lines)
    again = next((line for line in edge.new if can_anchor(line) and counts[line.strip()] > 1), None)
    if again is not None:
        raise DoubtError("ambiguous", f"The line {quoted(again)} stands twice in the edit.", 2)
    outer = min(len(indent(line)) for line in edge.new if line.strip())
    shown = {line.strip() for line in edge.new if len(indent(line)) == outer and can_anchor(line)}
    known = next((line for line in lines if line.strip() in shown), None)
    if known is not None:
        raise DoubtError("ambiguous", f"The line {quoted(known)} stands elsewhere: it may be context, not new.", 2)


def _refuse_same_neighbours(lines: Sequence[str], at: int) -> None:
    """Raise `DoubtError` if the lines on both sides of a block's border are equal: it may as well end at the other."""
    if 0 < at < len(lines) and lines[at].strip() and rstripped(lines[at - 1]) == rstripped(lines[at]):
        raise DoubtError("ambiguous", f"The line {quoted(lines[at])} stands on both sides of the end of a block.", 2)


def _refuse_repeated_tail(lines: list[str], start: int, end: int) -> None:
    """Raise `DoubtError` if the last lines of a block stand again right below: what lies between may be meant to go."""
    tail = [rstripped(line) for line in lines[start:end]]
    if sum(map(can_anchor, tail)) < _MIN_REPEATED:
        return
    below = [rstripped(line) for line in lines[end : end + _FAR * len(tail)]]
    if any(below[at : at + len(tail)] == tail for at in range(len(below))):
        raise DoubtError("ambiguous", f"The last lines of the block, {start + 1}-{end}, stand again right below.", 2)


def _place_at_end(lines: list[str], floor: int, block: Block) -> Placement:
    """Place a last block without anchors by the end of the file, if its last lines stand there and only there."""
    end = 1 + max(at for at, line in enumerate(lines) if line.strip())
    outer = lines[floor:end][::-1]
    edge = read_edge(block.lines[::-1], outer, "", upward=True, at_least=1)
    tail = [rstripped(line) for line in lines[end - edge.consumed : end]]
    places = sum([rstripped(line) for line in lines[at : at + len(tail)]] == tail for at in range(end))
    if places != 1:
        raise DoubtError("ambiguous", f"The block's last line {quoted(tail[-1])} stands in {places} places.", places)
    start, above = _checked_upper(lines, floor, block, edge, end)
    return Placement(start, end, tuple(above))


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


def _begins_with(outer: Sequence[str], inner: Sequence[str]) -> bool:
    return [rstripped(line) for line in outer[: len(inner)]] == [rstripped(line) for line in inner]


def unique_lines(lines: Sequence[str]) -> frozenset[str]:
    counts = Counter(rstripped(line) for line in lines)
    return frozenset(line for line, count in counts.items() if count == 1 and can_anchor(line))


def can_anchor(line: str) -> bool:
    return sum(char.isalnum() for char in line) >= _MIN_ANCHOR_CHARS
