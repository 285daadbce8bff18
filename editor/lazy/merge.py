"""Merges lazy snippets that only add lines or change single lines: anchored, then by syntax.

Between two anchors a block shows everything: the file's lines there must all be among the block's, in order, or stand
there in another form one by one (`timeout: 30` for `timeout: 20`). Beyond the outermost anchors lie the edges
(`editor/lazy/doubts.py`).

Lines that stand in many places (`return result`) leave it open where a block ends; a definition's extent does not. So
a snippet that consists of complete definitions is merged for certain if each is bound and only gains lines, or has
fields changed in place. Whatever would take a line away is left to `editor/reader/`.

Every block has to be anchored. A snippet that would take a line away, or whose lines stand in another order, may mean
to delete or to move, or may be careless: `editor/reader/` gives its readings as candidates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rapidfuzz import fuzz

from editor.diff import LineOp, line_opcodes
from editor.errors import format_span
from editor.lazy.doubts import (
    NOTE,
    Block,
    DoubtError,
    Edge,
    Placement,
    can_anchor,
    check_addition,
    check_edge,
    has_same_field,
    is_closing_line,
    quote_line,
    read_edge,
    refuse_copies,
    refuse_known,
    refuse_other_gap,
    refuse_repeated_tail,
    refuse_rival,
    refuse_same_neighbours,
    refuse_twin,
)
from editor.match.ladder import LineIndex, find_places, find_runs, get_indent, rstrip_blanks, strip_blank_lines
from editor.placeholders import holds_placeholder, is_placeholder
from editor.snippets import Unit, build_units, flatten_sketch, survey_snippet
from editor.syntax import Survey, survey
from editor.types import AlreadyApplied, Merged, MergeOutcome, Sketch, Unresolved


def place_block(index: LineIndex, floor: int, block: Block, unique: frozenset[str]) -> Placement:
    """Return what one block does to the file from line `floor` on; raises `DoubtError`."""
    anchors = _find_anchors(index, block, unique)
    if not anchors and not block.open_below:
        return _place_at_end(index, floor, block)
    if not anchors:
        raise DoubtError(
            "ambiguous", f"No line of the block {quote_line(block.lines[0])} stands just once in the file."
        )
    places = [place for _, place in anchors]
    if places[0] < floor or any(low >= high for low, high in pairwise(places)):
        raise DoubtError("open_intent", f"The lines of the block {quote_line(block.lines[0])} stand in another order.")
    start, above = _merge_upper_edge(index, floor, block, *anchors[0])
    end, below = _merge_lower_edge(index, block, *anchors[-1])
    return Placement(start, end, (*above, *_merge_between(index, block, anchors), *below))


def _find_anchors(index: LineIndex, block: Block, unique: frozenset[str]) -> list[tuple[int, int]]:
    """Return (line of the block, line of the file) of all anchors."""
    wanted = {rstrip_blanks(line): at for at, line in enumerate(block.lines) if rstrip_blanks(line) in unique}
    places = index.key_by(rstrip_blanks).places
    found = [(row, places[line][0]) for line, row in wanted.items()]
    if found:
        return sorted(found)
    # Lines that each stand often can still stand together just once.
    whole = find_places(index, block.lines) if any(can_anchor(line) for line in block.lines) else None
    if whole is None or whole.rung == "reindent" or len(whole.starts) != 1:
        return []
    return [(at, whole.starts[0] + at) for at in range(len(block.lines))]


def _merge_between(index: LineIndex, block: Block, anchors: list[tuple[int, int]]) -> list[str]:
    """Return the lines from the first anchor to the last, nothing of the file left out."""
    lines = index.lines
    merged = [lines[anchors[0][1]]]
    for (row, place), (next_row, next_place) in pairwise(anchors):
        hidden = lines[place + 1 : next_place]
        shown = block.lines[row + 1 : next_row]
        gap = keep_hidden_lines(hidden, shown)
        if gap is None and is_rewritten_in_place(hidden, shown):
            merged += [*shown, lines[next_place]]
            continue
        if gap is None:
            raise DoubtError(
                "open_intent",
                f"The edit shows what is to stand between {quote_line(lines[place])} and "
                f"{quote_line(lines[next_place])}, and not {format_span(place + 1, next_place)} of the file.",
            )
        new = find_added_lines(gap, hidden)
        refuse_copies(new, index)
        check_addition(new, index, place + 1)
        merged += [*gap, lines[next_place]]
    return merged


def _merge_upper_edge(index: LineIndex, floor: int, block: Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block begins in the file, and its lines above the first anchor."""
    lines = list(index.lines)
    inner, outer = block.lines[:row][::-1], lines[floor:place][::-1]
    if not block.open_above and not _begins_with(outer, inner):
        head = keep_hidden_lines(lines[:place], block.lines[:row])
        if head is None:
            raise DoubtError("open_intent", f"Nothing says where the first line {quote_line(block.lines[0])} belongs.")
        check_addition(find_added_lines(head, lines[:place]), index, place)
        return 0, head
    if block.open_above and inner and is_closing_line(block.lines[0]):
        raise DoubtError("open_intent", f"The edit shows of what ends above it only {quote_line(block.lines[0])}.", 2)
    edge = read_edge(inner, outer, lines[place], upward=True)
    start, above = _check_upper_edge(index, floor, block, edge, place)
    if block.open_above:
        refuse_same_neighbours(lines, start)
    elif any(line.strip() for line in lines[:start]):
        raise DoubtError("open_intent", f"The edit begins with line {start + 1} of the file, without a placeholder.", 2)
    return start, above


def _check_upper_edge(index: LineIndex, floor: int, block: Block, edge: Edge, place: int) -> tuple[int, list[str]]:
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


def _merge_lower_edge(index: LineIndex, block: Block, row: int, place: int) -> tuple[int, list[str]]:
    """Return where the block ends in the file, and its lines below the last anchor."""
    lines = list(index.lines)
    inner, outer = block.lines[row + 1 :], lines[place + 1 :]
    if not block.open_below and not _begins_with(outer, inner):
        tail = keep_hidden_lines(outer, inner)
        if tail is None:
            raise DoubtError("open_intent", f"Nothing says what follows the last line {quote_line(block.lines[-1])}.")
        check_addition(find_added_lines(tail, outer), index, place + 1)
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
    tail = [rstrip_blanks(line) for line in lines[end - edge.consumed : end]]
    places = sum(1 for _ in find_runs(index.key_by(rstrip_blanks).keys, tail))
    if places != 1:
        raise DoubtError(
            "ambiguous", f"The block's last line {quote_line(tail[-1])} stands in {places} places.", places
        )
    start, above = _check_upper_edge(index, floor, block, edge, end)
    return Placement(start, end, tuple(above))


def _begins_with(outer: Sequence[str], inner: Sequence[str]) -> bool:
    return [rstrip_blanks(line) for line in outer[: len(inner)]] == [rstrip_blanks(line) for line in inner]


# Per cent of rapidfuzz's ratio that a line must share with the one whose new form it is.
_SAME_LINE = 50


def keep_hidden_lines(hidden: Sequence[str], shown: Sequence[str]) -> list[str] | None:
    """Return `shown` in the file's spelling if it holds all `hidden` lines in their order, else None."""
    merged = list(shown)
    at = 0
    for line in hidden:
        while at < len(shown) and rstrip_blanks(shown[at]) != rstrip_blanks(line):
            at += 1
        if at == len(shown):
            return None
        merged[at] = line
        at += 1
    return merged


def is_rewritten_in_place(hidden: Sequence[str], shown: Sequence[str]) -> bool:
    """Return whether each hidden line that is not shown stands there changed, about the same name and no line more."""
    return all(
        op.equal or _has_same_fields(hidden, shown, op)
        for op in line_opcodes([rstrip_blanks(line) for line in hidden], [rstrip_blanks(line) for line in shown])
    )


def _has_same_fields(hidden: Sequence[str], shown: Sequence[str], op: LineOp) -> bool:
    if op.a_end - op.a_start != op.b_end - op.b_start:
        return False
    pairs = zip(hidden[op.a_start : op.a_end], shown[op.b_start : op.b_end], strict=True)
    return all(
        has_same_field(have, sent) and get_indent(have) == get_indent(sent) and fuzz.ratio(have, sent) >= _SAME_LINE
        for have, sent in pairs
    )


def find_added_lines(gap: Sequence[str], hidden: Sequence[str]) -> list[str]:
    left = Counter(hidden)
    left.subtract(gap)
    return [line for line in gap if left[line] < 0]


def find_unique_lines(lines: Sequence[str]) -> frozenset[str]:
    counts = Counter(rstrip_blanks(line) for line in lines)
    return frozenset(line for line, count in counts.items() if count == 1 and can_anchor(line))


def merge_definitions(lines: list[str], sketch: Sketch, language: str | None) -> list[str] | None:
    """Return the merged lines, None where a part of the snippet is not surely bound."""
    seen = survey("\n".join(lines), language)
    snippet, markers = flatten_sketch(sketch)
    sent = survey_snippet(["" if at in markers else line for at, line in enumerate(snippet)], language)
    if seen is None or sent is None or seen.error_lines or sent.error_lines:
        return None
    shown = build_units(snippet, sent, markers)
    if not all(unit.is_marker or (unit.kind and not unit.elides) for unit in shown):
        return None  # before the units of a long file are told
    file = build_units(lines, seen)
    places = _bind_definitions(file, shown, seen)
    if places is None:
        return None
    merged, index = list(lines), LineIndex(lines)
    try:
        for s, f in sorted(places.items(), reverse=True):
            have, unit = file[f], shown[s]
            merged[have.start : have.end] = _merge_definition(index, have, snippet, unit)
    except DoubtError:
        return None
    return merged


def _get_identity(unit: Unit) -> tuple[str, str]:
    """Return (kind, name) of a definition that the grammar knows; a method counts as a function."""
    return "function" if unit.kind == "method" else unit.kind, unit.name


def _bind_definitions(file: Sequence[Unit], shown: Sequence[Unit], seen: Survey) -> dict[int, int] | None:
    """Return for every definition of the snippet which of the file it is; None if one is open, or out of order."""
    defined = Counter(symbol.simple_name for symbol in seen.symbols)
    in_file = {_get_identity(unit): f for f, unit in enumerate(file) if unit.kind}
    places: dict[int, int] = {}
    for s, unit in enumerate(shown):
        if unit.is_marker:
            continue
        wanted = _get_identity(unit)
        if wanted not in in_file or defined[unit.name] != 1:
            return None
        if unit.width != file[in_file[wanted]].width:
            return None
        places[s] = in_file[wanted]
    ascending = all(f < below for f, below in pairwise(places.values()))
    return places if places and ascending and not any(_list_hidden(file, shown, places)) else None


def _list_hidden(file: Sequence[Unit], shown: Sequence[Unit], places: dict[int, int]) -> Iterator[bool]:
    """Yield whether the file has units where the snippet, without a marker, shows none."""
    first, last = min(places), max(places)
    yield first == 0 and places[first] > 0
    yield last == len(shown) - 1 and places[last] < len(file) - 1
    for (s, f), (next_s, next_f) in pairwise(sorted(places.items())):
        yield next_s == s + 1 and next_f != f + 1


def _merge_definition(index: LineIndex, have: Unit, snippet: Sequence[str], unit: Unit) -> list[str]:
    """Return a definition with the lines that it gains; raises `DoubtError` if it loses one, or gains it twice."""
    hidden, sent = index.lines[have.start : have.end], snippet[unit.start : unit.end]
    merged = keep_hidden_lines(hidden, sent)
    if merged is None:
        if not is_rewritten_in_place(hidden, sent):
            raise DoubtError("open_intent", "A line would be lost.")
        return list(sent)
    gained = find_added_lines(merged, hidden)
    stands = index.key_by(str.strip).places
    if any(can_anchor(line) and line.strip() in stands for line in gained):
        raise DoubtError("open_intent", "A line that is gained stands elsewhere: it may be moved.")
    check_addition(gained, index, have.end)
    return merged


_OTHER_FORMAT = re.compile(
    r"<{5,9} ?(?:SEARCH|ORIGINAL|HEAD)\b|-{5,9} ?SEARCH\b|={7}$|[>+]{5,9} ?(?:REPLACE|UPDATED)\b|"
    r"@@ .*@@|\*\*\* (?:Begin|End|Update|Add|Delete)\b"
)
_SUGGESTION = "Send SEARCH/REPLACE blocks with the exact lines to change."


def merge_sketch(lines: list[str], sketch: Sketch, language: str | None = None) -> MergeOutcome:
    """Return the merged text, every line with an ending, or why there is none, with the readings that there are."""
    try:
        merged = _merge_blocks(lines, sketch)
    except DoubtError as doubt:
        bound = merge_definitions(lines, sketch, language) if sketch.elides else None
        if bound is not None and bound != lines:
            return Merged("".join(line + "\n" for line in bound), "syntax")
        return Unresolved(doubt.code, doubt.reason, doubt.num_candidates, suggestion=_SUGGESTION)
    if merged == lines:
        return AlreadyApplied("All lines of the snippet already stand in the file.")
    return Merged("".join(line + "\n" for line in merged), "anchored")


def _merge_blocks(lines: list[str], sketch: Sketch) -> list[str]:
    unclear = find_unclear_line(lines, sketch)
    if unclear:
        raise DoubtError("open_intent", unclear)
    if not sketch.elides:
        return _merge_whole(lines, sketch.blocks[0])
    if not any(line.strip() for line in lines):
        raise DoubtError("open_intent", "The file is empty, so there is nothing that a placeholder can stand for.")
    unique = find_unique_lines(lines) & find_unique_lines([line for block in sketch.blocks for line in block])
    index = LineIndex(lines)
    merged: list[str] = []
    at = 0
    unspaced: list[tuple[Block, Placement]] = []
    placed: list[tuple[Block, Placement]] = []
    for block in _build_blocks(sketch):
        placement = place_block(index, at, block, unique)
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
        if merged == lines or (not _is_head(block) and _is_unchanged(lines, placement)):
            raise DoubtError(
                "open_intent", "All lines of a block stand in the file, but other lines where the edit has blank ones."
            )
    for block, placement in placed:
        if merged == lines:
            refuse_rival(index, block, placement)
        elif not _is_head(block) and _is_unchanged(lines, placement):
            where = format_span(placement.start, placement.end)
            raise DoubtError("open_intent", f"A block stands at {where} already: it may hide a deletion.", 2)
    return merged


def _is_head(block: Block) -> bool:
    """Return whether a block may just be the head of what follows (`class A:`)."""
    return sum(bool(line.strip()) for line in block.lines) == 1


def _is_unchanged(lines: list[str], placement: Placement) -> bool:
    """Return whether a block changes nothing but blank lines."""
    have = lines[placement.start : placement.end]
    return [line for line in placement.lines if line.strip()] == [line for line in have if line.strip()]


def find_unclear_line(lines: list[str], sketch: Sketch) -> str:
    """Return a reason if a line of the snippet or file may be a note, a placeholder or another format; else ""."""
    stands = {line.strip() for line in lines}
    for line in lines:
        if is_placeholder(line):
            return f"The file itself holds the placeholder line {quote_line(line)}."
    for line in (line for block in sketch.blocks for line in block if line.strip() not in stands):
        if holds_placeholder(line):
            return f"A placeholder stands behind code in the line {quote_line(line)}."
        if _OTHER_FORMAT.match(line):
            return f"The line {quote_line(line)} belongs to another format of edits, or to a file."
        if NOTE.match(line):
            return f"The comment {quote_line(line)} may be a note about the edit, or part of it."
    return ""


def _merge_whole(lines: list[str], block: tuple[str, ...]) -> list[str]:
    """Merge a snippet without placeholders; raise `DoubtError` unless it holds all lines of the file."""
    if not any(line.strip() for line in lines):
        return list(block)
    trimmed = list(strip_blank_lines(block))
    body = list(strip_blank_lines(lines))
    merged = keep_hidden_lines(body, trimmed)
    if merged is None or not any(can_anchor(line) for line in body):
        raise DoubtError("open_intent", "The snippet has no placeholder: it may be the whole file, or a part of it.", 2)
    first = next(at for at, line in enumerate(lines) if line.strip())
    return [*lines[:first], *merged, *lines[first + len(body) :]]


def _build_blocks(sketch: Sketch) -> list[Block]:
    last = len(sketch.blocks) - 1
    blocks: list[Block] = []
    for number, literal in enumerate(sketch.blocks):
        lines = strip_blank_lines(literal)
        open_above = number > 0 or sketch.opens_elided
        open_below = number < last or sketch.closes_elided
        above = next(at for at, line in enumerate(literal) if line.strip())
        below = next(at for at, line in enumerate(reversed(literal)) if line.strip())
        blocks.append(Block(lines, above, below, open_above, open_below))
    return blocks


def _is_solid(lines: Sequence[str], at: int) -> bool:
    return 0 <= at < len(lines) and bool(lines[at].strip())
