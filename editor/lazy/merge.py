"""One block of a sketch bound to its place in the file by lines that stand just once, or not at all.

Between two anchors a block shows everything: the file's lines there must all be among the block's, in order, or stand
there in another form one by one (`timeout: 30` for `timeout: 20`). Beyond the outermost anchors lie the edges
(`editor/lazy/edges.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from editor.lazy.doubts import refuse_copies, refuse_known, refuse_repeated_tail, refuse_same_neighbours
from editor.lazy.edges import DoubtError, Edge, check_addition, check_edge, is_closing, quoted, read_edge
from editor.lazy.placements import Block, Placement
from editor.lazy.showing import added, can_anchor, in_other_form, with_all_of
from editor.matching.index import LineIndex, starts_in
from editor.matching.ladder import find, rstripped
from editor.wording import span_of


def place(index: LineIndex, floor: int, block: Block, unique: frozenset[str]) -> Placement:
    """Return what one block does to the file from line `floor` on; raises `DoubtError`."""
    anchors = _anchors(index, block, unique)
    if not anchors and not block.open_below:
        return _place_at_end(index, floor, block)
    if not anchors:
        raise DoubtError("ambiguous", f"No line of the block {quoted(block.lines[0])} stands just once in the file.")
    places = [place for _, place in anchors]
    if places[0] < floor or any(low >= high for low, high in pairwise(places)):
        raise DoubtError("open_intent", f"The lines of the block {quoted(block.lines[0])} stand in another order.")
    start, above = _upper_edge(index, floor, block, *anchors[0])
    end, below = _lower_edge(index, block, *anchors[-1])
    return Placement(start, end, (*above, *_between(index, block, anchors), *below))


def _anchors(index: LineIndex, block: Block, unique: frozenset[str]) -> list[tuple[int, int]]:
    """Return (line of the block, line of the file) of all anchors."""
    wanted = {rstripped(line): at for at, line in enumerate(block.lines) if rstripped(line) in unique}
    places = index.by(rstripped).places
    found = [(row, places[line][0]) for line, row in wanted.items()]
    if found:
        return sorted(found)
    # Lines that each stand often can still stand together just once.
    whole = find(index, block.lines) if any(can_anchor(line) for line in block.lines) else None
    if whole is None or whole.rung == "reindent" or len(whole.starts) != 1:
        return []
    return [(at, whole.starts[0] + at) for at in range(len(block.lines))]


def _between(index: LineIndex, block: Block, anchors: list[tuple[int, int]]) -> list[str]:
    """Return the lines from the first anchor to the last, nothing of the file left out."""
    lines = index.lines
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
        new = added(gap, hidden)
        refuse_copies(new, index)
        check_addition(new, index, place + 1)
        merged += [*gap, lines[next_place]]
    return merged


def _upper_edge(index: LineIndex, floor: int, block: Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block begins in the file, and its lines above the first anchor."""
    lines = list(index.lines)
    inner, outer = block.lines[:row][::-1], lines[floor:place][::-1]
    if not block.open_above and not _begins_with(outer, inner):
        head = with_all_of(lines[:place], block.lines[:row])
        if head is None:
            raise DoubtError("open_intent", f"Nothing says where the first line {quoted(block.lines[0])} belongs.")
        check_addition(added(head, lines[:place]), index, place)
        return 0, head
    if block.open_above and inner and is_closing(block.lines[0]):
        raise DoubtError("open_intent", f"The edit shows of what ends above it only {quoted(block.lines[0])}.", 2)
    edge = read_edge(inner, outer, lines[place], upward=True)
    start, above = _checked_upper(index, floor, block, edge, place)
    if block.open_above:
        refuse_same_neighbours(lines, start)
    elif any(line.strip() for line in lines[:start]):
        raise DoubtError("open_intent", f"The edit begins with line {start + 1} of the file, without a placeholder.", 2)
    return start, above


def _checked_upper(index: LineIndex, floor: int, block: Block, edge: Edge, place: int) -> tuple[int, list[str]]:
    lines = list(index.lines)
    start = place - edge.consumed
    kept = lines[start:place]
    if not edge.new:
        return start, kept
    refuse_known(index, block, edge)
    check_edge(edge, lines[floor:place][::-1], upward=True, gap=block.gap_above > 0)
    check_addition(edge.new, index, start)
    gap = [""] if block.gap_above and start > 0 and lines[start - 1].strip() else []
    return start, [*gap, *edge.new, *kept]


def _lower_edge(index: LineIndex, block: Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block ends in the file, and its lines below the last anchor."""
    lines = list(index.lines)
    inner, outer = block.lines[row + 1 :], lines[place + 1 :]
    if not block.open_below and not _begins_with(outer, inner):
        tail = with_all_of(outer, inner)
        if tail is None:
            raise DoubtError("open_intent", f"Nothing says what follows the last line {quoted(block.lines[-1])}.")
        check_addition(added(tail, outer), index, place + 1)
        return len(lines), tail
    edge = read_edge(inner, outer, lines[place], upward=False)
    end = place + 1 + edge.consumed
    refuse_repeated_tail(lines, place + 1, end)
    if block.open_below:
        refuse_same_neighbours(lines, end)
    if not block.open_below and any(line.strip() for line in lines[end:]):
        raise DoubtError("open_intent", f"The edit ends with line {end} of the file, without a placeholder.", 2)
    kept = lines[place + 1 : end]
    if not edge.new:
        return end, kept
    refuse_known(index, block, edge)
    check_edge(edge, outer, upward=False, gap=block.gap_below > 0)
    check_addition(edge.new, index, end)
    gap = [""] if block.gap_below and end < len(lines) and lines[end].strip() else []
    return end, [*kept, *edge.new, *gap]


def _place_at_end(index: LineIndex, floor: int, block: Block) -> Placement:
    """Place a last block without anchors by the end of the file, if its last lines stand there and only there."""
    lines = list(index.lines)
    end = 1 + max(at for at, line in enumerate(lines) if line.strip())
    outer = lines[floor:end][::-1]
    edge = read_edge(block.lines[::-1], outer, "", upward=True, at_least=1)
    tail = [rstripped(line) for line in lines[end - edge.consumed : end]]
    places = sum(1 for _ in starts_in(index.by(rstripped).keys, tail))
    if places != 1:
        raise DoubtError("ambiguous", f"The block's last line {quoted(tail[-1])} stands in {places} places.", places)
    start, above = _checked_upper(index, floor, block, edge, end)
    return Placement(start, end, tuple(above))


def _begins_with(outer: Sequence[str], inner: Sequence[str]) -> bool:
    return [rstripped(line) for line in outer[: len(inner)]] == [rstripped(line) for line in inner]
