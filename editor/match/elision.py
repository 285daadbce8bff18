"""Matches SEARCH parts that leave out their middle with `...` lines.

    def load(path):                 def load(path, strict):
        ...                             ...
        return data                     return checked(data)

The pieces between the `...` lines must be in the file, in order, in exactly one way. The lines that they leave out
stay, at the depth of the `...` of REPLACE. If lines move from one piece to another, it is open which lines move along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from editor.errors import format_span
from editor.match.file_style import adapt_to_file, find_literal_lines, is_already_there
from editor.match.ladder import IndentMapping, LineIndex, Shift, find_places, get_indent, strip_blanks
from editor.placeholders import is_placeholder
from editor.splices import MAX_CANDIDATES, Open, Option, Resolution, Splice
from editor.types import Replacement, Rung, Unresolved

# More pieces than this are not looked for, and more ways to place them are not counted.
_MAX_PIECES = 50
_MAX_WAYS = 50

_Piece = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _PieceMatch:
    """The place of one piece, lines [start, end), and the rung and the mapping of indentations that found it."""

    start: int
    end: int
    shift: IndentMapping
    rung: Rung


def is_elision(line: str) -> bool:
    """Return whether a line may stand for lines left out."""
    return line.strip() in ("...", "…") or is_placeholder(line)


def has_elision(change: Replacement) -> bool:
    """Return whether SEARCH has a line that may stand for others, and a literal one."""
    return any(map(is_elision, change.before)) and any(line.strip() for line in change.before if not is_elision(line))


def resolve_elided(index: LineIndex, change: Replacement) -> Resolution | None:
    """Return the effect of a change on the file; None if its pieces are not there in order."""
    before, after = split_pieces(change.before), split_pieces(change.after)
    same = len(before) == len(after)
    pairs = list(zip(before, after, strict=True)) if same else [(piece, piece) for piece in before]
    gaps = _find_gap_indents(change, pairs) if same else []
    pairs = [(old, new) for old, new in pairs if old or new]
    if any(not any(line.strip() for line in old) for old, _ in pairs):
        return None
    ways = list(islice(_find_ways(index, [old for old, _ in pairs]), _MAX_WAYS)) if len(pairs) <= _MAX_PIECES else []
    if not ways:
        return None
    if not same:
        return _leave_elision_open(index, change, ways)
    if len(ways) == 1:
        one = _apply_at(index, pairs, gaps, ways[0])
        return _leave_move_open(one) if isinstance(one, Splice) and _moves_lines(pairs) else one
    options: list[Option] = []
    for way in ways[:MAX_CANDIDATES]:
        splice = _apply_at(index, pairs, gaps, way)
        if isinstance(splice, Splice):
            options.append(Option(splice, 1 / len(ways), f"SEARCH taken at {splice.location}"))
    first = format_span(ways[0][0].start, ways[0][-1].end)
    unresolved = Unresolved(
        "ambiguous",
        f"The SEARCH lines around '...' stand in {len(ways)} ways, the first at {first}.",
        num_candidates=len(ways),
        suggestion="Send lines above and below '...' that stand just once in the file, or leave nothing out.",
    )
    return Open(unresolved, tuple(options))


def _find_gap_indents(change: Replacement, pairs: Sequence[_Piece]) -> list[tuple[str, str] | None]:
    """Return the indentation of the `...` lines, in SEARCH and in REPLACE, above each piece that holds lines.

    The last entry is of those below the last piece. It is None where several `...` lines disagree.
    """
    old = [get_indent(line) for line in change.before if is_elision(line)]
    new = [get_indent(line) for line in change.after if is_elision(line)]
    gaps: list[tuple[str, str] | None] = []
    said: set[tuple[str, str]] = set()
    for number, (before, after) in enumerate(pairs):
        if number:
            said.add((old[number - 1], new[number - 1]))
        if before or after:
            gaps.append(_agree_on(said))
            said = set()
    return [*gaps, _agree_on(said)]


def _agree_on(said: set[tuple[str, str]]) -> tuple[str, str] | None:
    if all(old == new for old, new in said):
        return "", ""
    return next(iter(said)) if len(said) == 1 else None


def _moves_lines(pairs: Sequence[_Piece]) -> bool:
    """Return whether a line of one piece of SEARCH is in another one of REPLACE: the elided lines may move, too."""
    old = [{strip_blanks(line) for line in before if any(map(str.isalnum, line))} for before, _ in pairs]
    new = [{strip_blanks(line) for line in after} for _, after in pairs]
    return any(
        (old[i] - old[j] - new[i]) & new[j] for i in range(len(pairs)) for j in range(len(pairs)) if i != j and old[i]
    )


def _leave_move_open(splice: Splice) -> Open:
    unresolved = Unresolved(
        "open_intent",
        f"Lines of SEARCH, at {splice.location}, stand on the other side of '...' in REPLACE: whether the lines left "
        "out are to move with them is open.",
        num_candidates=1,
        suggestion="Write out the lines that move, or send one block that removes them and one that adds them.",
    )
    return Open(unresolved, (Option(splice, 0.3, "the lines left out stay where they are"),))


def _leave_depth_open(start: int, end: int) -> Open:
    return Open(
        Unresolved(
            "open_intent",
            f"The '...' of REPLACE is indented otherwise than that of SEARCH, but the lines left out at "
            f"{format_span(start, end)} cannot be moved alike.",
            suggestion="Write out the lines that are to be indented otherwise.",
        )
    )


def _apply_at(
    index: LineIndex, pairs: Sequence[_Piece], gaps: Sequence[tuple[str, str] | None], way: Sequence[_PieceMatch]
) -> Resolution | None:
    """Return the effect of a change with its pieces at these places; None if its lines cannot be indented so."""
    lines: list[str] = []
    added: list[tuple[int, int, tuple[str, ...]]] = []
    at = way[0].start
    if any(gap != ("", "") for gap in (gaps[0], gaps[-1])):
        return _leave_depth_open(way[0].start, way[-1].end)
    for (before, after), place, gap in zip(pairs, way, gaps, strict=False):
        found = index.lines[place.start : place.end]
        written = adapt_to_file(Replacement(before, after), found, place.shift, place.rung, held=len(pairs) > 1)
        if written is None or not written.sure:
            return None
        elided = _shift_elided(index.lines[at : place.start], gap, place.shift)
        if elided is None:
            return _leave_depth_open(at, place.start)
        lines += [*elided, *written.lines]
        at = place.end
        if written.lines != tuple(found):
            added.append((place.start, place.end, written.lines))
    return _check_already_there(index, added, Splice(way[0].start, at, tuple(lines), "elided"))


def _shift_elided(lines: Sequence[str], gap: tuple[str, str] | None, shift: IndentMapping) -> list[str] | None:
    """Return the elided lines moved from the depth of the one `...` to that of the other; None if they cannot be."""
    solid = [line for line in lines if line.strip()]
    if gap == ("", "") or not solid:
        return list(lines)
    ends = [shift.apply(depth + "x") for depth in gap] if gap is not None else []
    old, new = (end[:-1] if end is not None else None for end in ends) if ends else (None, None)
    if old is None or new is None or get_indent(solid[0]) != old or not isinstance(shift, Shift):
        return None
    if find_literal_lines(lines) or not all(line.startswith(old) for line in solid):
        return None
    return [new + line[len(old) :] if line.strip() else line for line in lines]


def _check_already_there(
    index: LineIndex, changed: Sequence[tuple[int, int, tuple[str, ...]]], splice: Splice
) -> Resolution:
    """Return the splice, marked as done if all lines that the pieces add are already around them."""
    lines = index.lines
    there = [is_already_there(lines, *one) for one in changed]
    if not any(there):
        return splice
    if all(there):
        return replace(splice, lines=tuple(lines[splice.start : splice.end]), done=True, again=splice.lines)
    unresolved = Unresolved(
        "open_intent",
        f"Of the lines that are to be added at {splice.location}, some already stand there.",
        num_candidates=1,
        suggestion="Add the lines below or above to SEARCH.",
    )
    return Open(unresolved, (Option(splice, 0.5, "REPLACE written although some of its lines stand there"),))


def split_pieces(lines: Sequence[str]) -> list[tuple[str, ...]]:
    pieces: list[list[str]] = [[]]
    for line in lines:
        if is_elision(line):
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [tuple(piece) for piece in pieces]


def _find_ways(index: LineIndex, pieces: Sequence[tuple[str, ...]]) -> Iterator[list[_PieceMatch]]:
    """Yield every way to place all pieces in order, all indented alike."""
    found = [find_places(index, piece) for piece in pieces]
    every = [
        [
            _PieceMatch(start, start + len(piece), shift, one.rung)
            for start, shift in zip(one.starts, one.shifts, strict=True)
        ]
        for piece, one in zip(pieces, found, strict=True)
        if one is not None
    ]
    if len(every) < len(pieces):
        return
    for shift in dict.fromkeys(place.shift for place in every[0]):
        alike = [[place for place in places if place.shift == shift] for places in every]
        last: list[list[_PieceMatch]] = []
        # From the end: only places that leave room for the pieces below, so that no way is a dead end.
        room = len(index.lines)
        for places in reversed(alike):
            last.append([place for place in places if place.end <= room])
            room = max((place.start for place in last[-1]), default=-1)
        if room >= 0:
            yield from _combine_in_order(last[::-1], 0)


def _combine_in_order(places: Sequence[Sequence[_PieceMatch]], floor: int) -> Iterator[list[_PieceMatch]]:
    if not places:
        yield []
        return
    for place in places[0]:
        if place.start >= floor:
            for rest in _combine_in_order(places[1:], place.end):
                yield [place, *rest]


def _leave_elision_open(index: LineIndex, change: Replacement, ways: Sequence[Sequence[_PieceMatch]]) -> Open:
    """Leave a change open whose sides have different numbers of `...` lines: a left-out part may be meant to go."""
    options: tuple[Option, ...] = ()
    if not any(map(is_elision, change.after)):
        spans = [(way[0].start, way[-1].end) for way in ways[:MAX_CANDIDATES]]
        splices = [Splice(start, end, change.after, "elided") for start, end in spans]
        options = tuple(Option(one, 0.5 / len(splices), f"all of {one.location} replaced") for one in splices)
    unresolved = Unresolved(
        "open_intent",
        "SEARCH and REPLACE do not have the same number of '...' lines: what becomes of the lines left out is open.",
        num_candidates=len(options),
        suggestion="Write as many '...' lines in REPLACE as in SEARCH, or write out all lines.",
    )
    return Open(unresolved, options)
