"""SEARCH parts that leave out their middle: `...` lines that stand for the same lines in SEARCH and in REPLACE.

    def load(path):                 def load(path, strict):
        ...                             ...
        return data                     return checked(data)

The pieces between the `...` lines have to stand in the file, in order, in exactly one way; what they leave out stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from editor.formats.placeholders import is_placeholder
from editor.indentation import Mapping
from editor.ladder import LineIndex, find
from editor.spelling import already_there, in_file_spelling
from editor.splices import MAX_CANDIDATES, Open, Option, Resolution, Splice
from editor.types import Replacement, Unresolved

_Place = tuple[int, int, tuple[str, ...]]
# Pieces that stand more often than this are not combined any further.
_MAX_WAYS = 50


def is_elision(line: str) -> bool:
    """Tell whether a line may stand for lines left out."""
    return line.strip() in ("...", "…") or is_placeholder(line)


def elides(change: Replacement) -> bool:
    """Tell whether SEARCH has a line that may stand for others, and a real one."""
    return any(map(is_elision, change.before)) and any(line.strip() for line in change.before if not is_elision(line))


def resolve_elided(index: LineIndex, change: Replacement) -> Resolution | None:
    """Return what the change does to the file; None if its pieces do not stand there one below the other."""
    before, after = _pieces(change.before), _pieces(change.after)
    same = len(before) == len(after)
    pairs = list(zip(before, after, strict=True)) if same else [(piece, piece) for piece in before]
    pairs = [(old, new) for old, new in pairs if old or new]
    if any(not any(line.strip() for line in old) for old, _ in pairs):
        return None
    ways = list(islice(_ways(index, pairs, 0), _MAX_WAYS))
    if not ways:
        return None
    if not same:
        return _uneven(index, change, ways)
    splices = [_joined(index, way) for way in ways]
    if len(splices) == 1:
        return _unless_there(index, ways[0], splices[0])
    options = [Option(one, 1 / len(splices), f"SEARCH taken at {one.where}") for one in splices[:MAX_CANDIDATES]]
    unresolved = Unresolved(
        "ambiguous",
        f"The SEARCH lines around '...' stand in {len(splices)} ways, the first at {splices[0].where}.",
        num_candidates=len(splices),
        suggestion="Send lines above and below '...' that stand just once in the file, or leave nothing out.",
    )
    return Open(unresolved, tuple(options))


def _unless_there(index: LineIndex, way: Sequence[_Place], splice: Splice) -> Resolution:
    """Return the splice, or that nothing is to do where all that the pieces add already stands around them."""
    lines = index.lines
    changed = [(start, end, written) for start, end, written in way if tuple(lines[start:end]) != written]
    there = [already_there(lines, *one) for one in changed]
    if not any(there):
        return splice
    if all(there):
        return replace(splice, lines=tuple(lines[splice.start : splice.end]), done=True)
    unresolved = Unresolved(
        "open_intent",
        f"Of the lines that are to be added at {splice.where}, some already stand there.",
        num_candidates=1,
        suggestion="Add the lines below or above to SEARCH.",
    )
    return Open(unresolved, (Option(splice, 0.5, "REPLACE written although some of its lines stand there"),))


def _pieces(lines: Sequence[str]) -> list[tuple[str, ...]]:
    pieces: list[list[str]] = [[]]
    for line in lines:
        if is_elision(line):
            pieces.append([])
        else:
            pieces[-1].append(line)
    return [tuple(piece) for piece in pieces]


def _ways(
    index: LineIndex,
    pairs: Sequence[tuple[tuple[str, ...], tuple[str, ...]]],
    floor: int,
    shifted: Mapping | None = None,
) -> Iterator[list[_Place]]:
    """Yield every way to place all pieces in order from line `floor` on, all indented alike."""
    if not pairs:
        yield []
        return
    before, after = pairs[0]
    places = find(index, before)
    if places is None:
        return
    for start, shift in zip(places.starts, places.shifts, strict=True):
        end = start + len(before)
        if start < floor or shifted not in (None, shift):
            continue
        written = in_file_spelling(Replacement(before, after), index.lines[start:end], shift, places.rung)
        if written is not None and written.sure:
            for rest in _ways(index, pairs[1:], end, shift):
                yield [(start, end, written.lines), *rest]


def _joined(index: LineIndex, way: Sequence[_Place]) -> Splice:
    start, end = way[0][0], way[-1][1]
    lines: list[str] = []
    at = start
    for low, high, written in way:
        lines += [*index.lines[at:low], *written]
        at = high
    return Splice(start, end, tuple(lines), "elided")


def _uneven(index: LineIndex, change: Replacement, ways: Sequence[Sequence[_Place]]) -> Open:
    """SEARCH leaves out what REPLACE does not speak of: it may be meant to go."""
    options: tuple[Option, ...] = ()
    if not any(map(is_elision, change.after)):
        spans = [(way[0][0], way[-1][1]) for way in ways[:MAX_CANDIDATES]]
        splices = [Splice(start, end, change.after, "elided") for start, end in spans]
        options = tuple(Option(one, 0.5 / len(splices), f"all of {one.where} replaced") for one in splices)
    unresolved = Unresolved(
        "open_intent",
        "SEARCH and REPLACE do not have the same number of '...' lines: what becomes of the lines left out is open.",
        num_candidates=len(options),
        suggestion="Write as many '...' lines in REPLACE as in SEARCH, or write out all lines.",
    )
    return Open(unresolved, options)
