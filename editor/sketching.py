"""Lazy snippets put into a file without a model, where they only add lines and every block is surely anchored.

A block is anchored by the lines that stand just once in the file and just once in the snippet. Between two anchors the
snippet shows everything: the file's lines there must all be among the block's, in order, and the block's are written.
What lies beyond a block's outermost anchors is an edge (`editor/edges.py`). A snippet that would take a line away, or
whose lines stand in another order, is left to the model: it may mean to delete, to move, or just be careless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from editor.edges import NOTE, DoubtError, Edge, check_addition, check_edge, quoted, read_edge
from editor.formats.placeholders import holds_placeholder, is_placeholder
from editor.ladder import find, rstripped
from editor.readings import candidates
from editor.twins import twin_of
from editor.types import AlreadyApplied, Merged, MergeOutcome, Sketch, Unresolved

_MIN_ANCHOR_CHARS = 3
_SUGGESTION = "Use mode 'model' or 'auto', or send SEARCH/REPLACE blocks with the exact lines to change."


@dataclass(frozen=True, slots=True)
class _Block:
    """One block without the blank lines next to placeholders; `gap_*` tell that there were some."""

    lines: tuple[str, ...]
    gap_above: bool
    gap_below: bool
    open_above: bool
    open_below: bool


@dataclass(frozen=True, slots=True)
class _Placement:
    """Lines [start, end) of the file become `lines`."""

    start: int
    end: int
    lines: tuple[str, ...]


def merge_sketch(lines: list[str], sketch: Sketch, language: str | None = None) -> MergeOutcome:
    """Return the merged text, every line with an ending, or why there is none, with the readings that there are."""
    try:
        merged = _merged_lines(lines, sketch)
    except DoubtError as doubt:
        readings = candidates(lines, sketch, language)
        count = max(doubt.num_candidates, len(readings))
        return Unresolved(doubt.code, doubt.reason, count, suggestion=_SUGGESTION, candidates=readings)
    if merged == lines:
        return AlreadyApplied("All lines of the snippet already stand in the file.")
    return Merged("".join(line + "\n" for line in merged), "anchored")


def _merged_lines(lines: list[str], sketch: Sketch) -> list[str]:
    _refuse_unclear_lines(lines, sketch)
    if not sketch.elides:
        return _whole(lines, sketch.blocks[0])
    if not any(line.strip() for line in lines):
        raise DoubtError("open_intent", "The file is empty, so there is nothing that a placeholder can stand for.")
    unique = _unique_lines(lines) & _unique_lines([line for block in sketch.blocks for line in block])
    merged: list[str] = []
    at = 0
    spaced = False
    for block in _blocks(sketch):
        placement = _place(lines, at, block, unique)
        twin = twin_of(lines, block.lines, placement.start, placement.end)
        if twin is not None:
            where = f"lines {placement.start + 1}-{placement.end}"
            raise DoubtError(
                "ambiguous", f"The block fits {where}, but line {twin + 1} and below are nearly the same.", 2
            )
        merged += lines[at : placement.start]
        merged += placement.lines
        at = placement.end
        spaced |= block.gap_above and _is_solid(lines, placement.start - 1)
        spaced |= block.gap_below and _is_solid(lines, placement.end)
    merged += lines[at:]
    if merged == lines and spaced:
        # Blank lines next to a placeholder are layout, unless nothing else is new: then they may be the context of
        # lines to be deleted.
        raise DoubtError(
            "open_intent", "All lines stand in the file, but with other lines where the edit has blank ones."
        )
    return merged


def _refuse_unclear_lines(lines: list[str], sketch: Sketch) -> None:
    stands = {line.strip() for line in lines}
    for line in lines:
        if is_placeholder(line):
            raise DoubtError("open_intent", f"The file itself holds the placeholder line {quoted(line)}.")
    for line in (line for block in sketch.blocks for line in block if line.strip() not in stands):
        if holds_placeholder(line):
            raise DoubtError("open_intent", f"A placeholder stands behind code in the line {quoted(line)}.")
        if NOTE.match(line):
            raise DoubtError("open_intent", f"The comment {quoted(line)} may be a note about the edit, or part of it.")


def _whole(lines: list[str], block: tuple[str, ...]) -> list[str]:
    """Read a snippet without placeholders: sure only if all lines of the file are in it, so none can be lost."""
    if not any(line.strip() for line in lines):
        return list(block)
    trimmed = list(_without_blank_ends(block))
    body = list(_without_blank_ends(lines))
    merged = _with_all_of(body, trimmed)
    if merged is None or not any(_can_anchor(line) for line in body):
        raise DoubtError("open_intent", "The snippet has no placeholder: it may be the whole file, or a part of it.", 2)
    first = next(at for at, line in enumerate(lines) if line.strip())
    return [*lines[:first], *merged, *lines[first + len(body) :]]


def _blocks(sketch: Sketch) -> list[_Block]:
    last = len(sketch.blocks) - 1
    blocks: list[_Block] = []
    for number, literal in enumerate(sketch.blocks):
        lines = _without_blank_ends(literal)
        open_above = number > 0 or sketch.opens_elided
        open_below = number < last or sketch.closes_elided
        blocks.append(_Block(lines, not literal[0].strip(), not literal[-1].strip(), open_above, open_below))
    return blocks


def _place(lines: list[str], floor: int, block: _Block, unique: frozenset[str]) -> _Placement:
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
    return _Placement(start, end, (*above, *_between(lines, block, anchors), *below))


def _refuse_twin(lines: list[str], block: _Block, placement: _Placement) -> None:
    twin = twin_of(lines, block.lines, placement.start, placement.end)
    if twin is not None:
        where = f"lines {placement.start + 1}-{placement.end}"
        raise DoubtError(
            "ambiguous", f"The block fits {where}, but the lines from {twin + 1} on are nearly the same.", 2
        )


def _anchors(lines: list[str], block: _Block, unique: frozenset[str]) -> list[tuple[int, int]]:
    """Return (line of the block, line of the file) of all anchors."""
    wanted = {rstripped(line): at for at, line in enumerate(block.lines) if rstripped(line) in unique}
    found = [(wanted[line], at) for at, line in enumerate(map(rstripped, lines)) if line in wanted]
    if found:
        return sorted(found)
    # Lines that each stand often can still stand together just once.
    whole = find(lines, block.lines) if any(_can_anchor(line) for line in block.lines) else None
    if whole is None or whole.rung == "reindent" or len(whole.starts) != 1:
        return []
    return [(at, whole.starts[0] + at) for at in range(len(block.lines))]


def _between(lines: list[str], block: _Block, anchors: list[tuple[int, int]]) -> list[str]:
    """Return the lines from the first anchor to the last, nothing of the file left out."""
    merged = [lines[anchors[0][1]]]
    for (row, place), (next_row, next_place) in pairwise(anchors):
        hidden = lines[place + 1 : next_place]
        shown = block.lines[row + 1 : next_row]
        gap = _with_all_of(hidden, shown)
        if gap is None:
            raise DoubtError(
                "open_intent",
                f"Lines {place + 2}-{next_place} of the file are not among the lines of the edit that are to stand "
                f"between {quoted(lines[place])} and {quoted(lines[next_place])}.",
            )
        check_addition(_added(gap, hidden), lines, place + 1)
        merged += [*gap, lines[next_place]]
    return merged


def _upper_edge(lines: list[str], floor: int, block: _Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block begins in the file, and its lines above the first anchor."""
    inner, outer = block.lines[:row][::-1], lines[floor:place][::-1]
    if not block.open_above and not _begins_with(outer, inner):
        head = _with_all_of(lines[:place], block.lines[:row])
        if head is None:
            raise DoubtError("open_intent", f"Nothing says where the first line {quoted(block.lines[0])} belongs.")
        check_addition(_added(head, lines[:place]), lines, place)
        return 0, head
    edge = read_edge(inner, outer, lines[place], upward=True)
    return _checked_upper(lines, floor, block, edge, place)


def _checked_upper(lines: list[str], floor: int, block: _Block, edge: Edge, place: int) -> tuple[int, list[str]]:
    start = place - edge.consumed
    kept = lines[start:place]
    if not edge.new:
        return start, kept
    check_edge(edge, lines[floor:place][::-1], upward=True, gap=block.gap_above)
    check_addition(edge.new, lines, start)
    gap = [""] if block.gap_above and start > 0 and lines[start - 1].strip() else []
    return start, [*gap, *edge.new, *kept]


def _lower_edge(lines: list[str], block: _Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block ends in the file, and its lines below the last anchor."""
    inner, outer = block.lines[row + 1 :], lines[place + 1 :]
    if not block.open_below and not _begins_with(outer, inner):
        tail = _with_all_of(outer, inner)
        if tail is None:
            raise DoubtError("open_intent", f"Nothing says what follows the last line {quoted(block.lines[-1])}.")
        check_addition(_added(tail, outer), lines, place + 1)
        return len(lines), tail
    edge = read_edge(inner, outer, lines[place], upward=False)
    end = place + 1 + edge.consumed
    kept = lines[place + 1 : end]
    if not edge.new:
        return end, kept
    check_edge(edge, outer, upward=False, gap=block.gap_below)
    check_addition(edge.new, lines, end)
    gap = [""] if block.gap_below and end < len(lines) and lines[end].strip() else []
    return end, [*kept, *edge.new, *gap]


def _place_at_end(lines: list[str], floor: int, block: _Block) -> _Placement:
    """Place a last block without anchors by the end of the file, if its last lines stand there and only there."""
    end = 1 + max(at for at, line in enumerate(lines) if line.strip())
    outer = lines[floor:end][::-1]
    edge = read_edge(block.lines[::-1], outer, "", upward=True, at_least=1)
    tail = [rstripped(line) for line in lines[end - edge.consumed : end]]
    places = sum([rstripped(line) for line in lines[at : at + len(tail)]] == tail for at in range(end))
    if places != 1:
        raise DoubtError("ambiguous", f"The block's last line {quoted(tail[-1])} stands in {places} places.", places)
    start, above = _checked_upper(lines, floor, block, edge, end)
    return _Placement(start, end, tuple(above))


def _with_all_of(hidden: Sequence[str], shown: Sequence[str]) -> list[str] | None:
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


def _added(gap: Sequence[str], hidden: Sequence[str]) -> list[str]:
    left = Counter(hidden)
    left.subtract(gap)
    return [line for line in gap if left[line] < 0]


def _begins_with(outer: Sequence[str], inner: Sequence[str]) -> bool:
    return [rstripped(line) for line in outer[: len(inner)]] == [rstripped(line) for line in inner]


def _unique_lines(lines: Sequence[str]) -> frozenset[str]:
    counts = Counter(rstripped(line) for line in lines)
    return frozenset(line for line, count in counts.items() if count == 1 and _can_anchor(line))


def _is_solid(lines: Sequence[str], at: int) -> bool:
    return 0 <= at < len(lines) and bool(lines[at].strip())


def _can_anchor(line: str) -> bool:
    return sum(char.isalnum() for char in line) >= _MIN_ANCHOR_CHARS


def _without_blank_ends(lines: Sequence[str]) -> tuple[str, ...]:
    solid = [at for at, line in enumerate(lines) if line.strip()]
    return tuple(lines[solid[0] : solid[-1] + 1]) if solid else ()
