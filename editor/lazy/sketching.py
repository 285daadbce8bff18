"""Lazy snippets put into a file without a model: certain where they only add lines, or change some one by one.

Every block has to be anchored (`editor/lazy/anchoring.py`). A snippet that would take a line away, or whose lines stand
in another order, may mean to delete, to move, or just be careless: its readings are given as candidates
(`editor/reader/`), for a model to choose from.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from editor.formats.placeholders import holds_placeholder, is_placeholder
from editor.lazy.anchoring import place
from editor.lazy.binding import bound_lines
from editor.lazy.doubts import refuse_other_gap, refuse_rival, refuse_twin
from editor.lazy.edges import NOTE, DoubtError, quoted
from editor.lazy.placements import Block, Placement
from editor.lazy.showing import can_anchor, unique_lines, with_all_of
from editor.matching.index import LineIndex
from editor.types import AlreadyApplied, Merged, MergeOutcome, Sketch, Unresolved
from editor.wording import span_of

_OTHER_FORMAT = re.compile(
    r"<{5,9} ?(?:SEARCH|ORIGINAL|HEAD)\b|-{5,9} ?SEARCH\b|={7}$|[>+]{5,9} ?(?:REPLACE|UPDATED)\b|"
    r"@@ .*@@|\*\*\* (?:Begin|End|Update|Add|Delete)\b"
)
_SUGGESTION = "Send SEARCH/REPLACE blocks with the exact lines to change."


def merge_sketch(lines: list[str], sketch: Sketch, language: str | None = None) -> MergeOutcome:
    """Return the merged text, every line with an ending, or why there is none, with the readings that there are."""
    try:
        merged = _merged_lines(lines, sketch)
    except DoubtError as doubt:
        bound = bound_lines(lines, sketch, language) if sketch.elides else None
        if bound is not None and bound != lines:
            return Merged("".join(line + "\n" for line in bound), "syntax")
        return Unresolved(doubt.code, doubt.reason, doubt.num_candidates, suggestion=_SUGGESTION)
    if merged == lines:
        return AlreadyApplied("All lines of the snippet already stand in the file.")
    return Merged("".join(line + "\n" for line in merged), "anchored")


def _merged_lines(lines: list[str], sketch: Sketch) -> list[str]:
    unclear = unclear_line(lines, sketch)
    if unclear:
        raise DoubtError("open_intent", unclear)
    if not sketch.elides:
        return _whole(lines, sketch.blocks[0])
    if not any(line.strip() for line in lines):
        raise DoubtError("open_intent", "The file is empty, so there is nothing that a placeholder can stand for.")
    unique = unique_lines(lines) & unique_lines([line for block in sketch.blocks for line in block])
    index = LineIndex(lines)
    merged: list[str] = []
    at = 0
    unspaced: list[tuple[Block, Placement]] = []
    placed: list[tuple[Block, Placement]] = []
    for block in _blocks(sketch):
        placement = place(index, at, block, unique)
        refuse_twin(index, block, placement)
        placed.append((block, placement))
        merged += lines[at : placement.start]
        merged += placement.lines
        at = placement.end
        refuse_other_gap(lines, block, placement)
        spaced = block.gap_above > 0 and _is_solid(lines, placement.start - 1)
        spaced |= block.gap_below > 0 and _is_solid(lines, placement.end)
        unspaced += [(block, placement)] if spaced else []
    merged += lines[at:]
    for block, placement in unspaced:
        # Blank lines next to a placeholder are layout, unless the block brings nothing else that is new, and is more
        # than the head of what follows: then they may be the context of lines to be deleted.
        if merged == lines or (not _is_head(block) and _adds_nothing(lines, placement)):
            raise DoubtError(
                "open_intent", "All lines of a block stand in the file, but other lines where the edit has blank ones."
            )
    for block, placement in placed:
        if merged == lines:
            refuse_rival(index, block, placement)
        elif not _is_head(block) and _adds_nothing(lines, placement):
            where = span_of(placement.start, placement.end)
            raise DoubtError("open_intent", f"A block stands at {where} already: it may hide a deletion.", 2)
    return merged


def _is_head(block: Block) -> bool:
    """Tell whether a block may just be the head of what follows (`class A:`)."""
    return sum(bool(line.strip()) for line in block.lines) == 1


def _adds_nothing(lines: list[str], placement: Placement) -> bool:
    """Tell whether a block changes nothing but blank lines."""
    have = lines[placement.start : placement.end]
    return [line for line in placement.lines if line.strip()] == [line for line in have if line.strip()]


def unclear_line(lines: list[str], sketch: Sketch) -> str:
    """Say which line of a snippet or of the file may be a note, a placeholder or of another format; "" for none."""
    stands = {line.strip() for line in lines}
    for line in lines:
        if is_placeholder(line):
            return f"The file itself holds the placeholder line {quoted(line)}."
    for line in (line for block in sketch.blocks for line in block if line.strip() not in stands):
        if holds_placeholder(line):
            return f"A placeholder stands behind code in the line {quoted(line)}."
        if _OTHER_FORMAT.match(line):
            return f"The line {quoted(line)} belongs to another format of edits, or to a file."
        if NOTE.match(line):
            return f"The comment {quoted(line)} may be a note about the edit, or part of it."
    return ""


def _whole(lines: list[str], block: tuple[str, ...]) -> list[str]:
    """Read a snippet without placeholders: sure only if all lines of the file are in it, so none can be lost."""
    if not any(line.strip() for line in lines):
        return list(block)
    trimmed = list(_without_blank_ends(block))
    body = list(_without_blank_ends(lines))
    merged = with_all_of(body, trimmed)
    if merged is None or not any(can_anchor(line) for line in body):
        raise DoubtError("open_intent", "The snippet has no placeholder: it may be the whole file, or a part of it.", 2)
    first = next(at for at, line in enumerate(lines) if line.strip())
    return [*lines[:first], *merged, *lines[first + len(body) :]]


def _blocks(sketch: Sketch) -> list[Block]:
    last = len(sketch.blocks) - 1
    blocks: list[Block] = []
    for number, literal in enumerate(sketch.blocks):
        lines = _without_blank_ends(literal)
        open_above = number > 0 or sketch.opens_elided
        open_below = number < last or sketch.closes_elided
        above = next(at for at, line in enumerate(literal) if line.strip())
        below = next(at for at, line in enumerate(reversed(literal)) if line.strip())
        blocks.append(Block(lines, above, below, open_above, open_below))
    return blocks


def _is_solid(lines: Sequence[str], at: int) -> bool:
    return 0 <= at < len(lines) and bool(lines[at].strip())


def _without_blank_ends(lines: Sequence[str]) -> tuple[str, ...]:
    solid = [at for at, line in enumerate(lines) if line.strip()]
    return tuple(lines[solid[0] : solid[-1] + 1]) if solid else ()
