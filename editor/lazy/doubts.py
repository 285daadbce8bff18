"""Doubts about a placed block of a snippet: twins, copies, hidden deletions, and what the prose says.

A block that is shown with a line of its twin's is anchored at the twin: in a test file where one case already has the
new argument, a snippet that adds it to the next case reads like the first one. So near twins are left to the model.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz

from editor.diff import LineOp, line_opcodes
from editor.errors import format_span
from editor.lazy.edges import DoubtError, Edge, find_line_key, has_same_field, quote_line
from editor.match.ladder import LineIndex, find_runs, get_indent, rstrip_blanks
from editor.types import ParsedEdit, Unresolved

_LIKE_A_TWIN = 0.75
_MAX_SHIFT = 12
# Lines that stand this often ("}", "return None") tell nothing about a place.
_MAX_OCCURRENCES = 200


def find_twin(
    index: LineIndex, block: Sequence[str], start: int, end: int, *, share: float = _LIKE_A_TWIN, at_least: int = 3
) -> int | None:
    """Return the first line (from 0) of a place like lines [start, end), where `block` was put; None if it has none.

    A place is a twin if that `share` of the block's lines, and at least `at_least`, stand there, in order and about as
    far apart.
    """
    rows = {at: rstrip_blanks(line) for at, line in enumerate(block) if line.strip()}
    keyed = index.key_by(rstrip_blanks)
    here = set(keyed.keys[start:end])
    num_here = sum(line in here for line in rows.values())
    wanted = max(at_least, share * num_here)
    if num_here < at_least:
        return None
    occurrences = {line: _exclude_range(keyed.places.get(line, ()), start, end) for line in set(rows.values())}
    shift = min(_MAX_SHIFT, len(block) - min(len(block), end - start) + 1)
    votes: dict[int, set[int]] = defaultdict(set)
    for row, line in rows.items():
        if len(occurrences[line]) <= _MAX_OCCURRENCES:
            for at in occurrences[line]:
                for offset in range(at - row, at - row + shift + 1):
                    votes[offset].add(row)
    return min((max(0, offset) for offset, found in votes.items() if len(found) >= wanted), default=None)


def _exclude_range(places: Sequence[int], start: int, end: int) -> list[int]:
    return [*places[: bisect_left(places, start)], *places[bisect_left(places, end) :]]


_GOES = re.compile(
    r"\b(?:remov\w+|delet\w+|drop(?:s|ped)?|renam\w+|mov(?:e|es|ed|ing)|replac\w+|get rid|rid of|goes? away|no longer|"
    r"instead of|swap\w*)\b",
    re.IGNORECASE,
)
# Between the old and the new lines: "with:", "to this:", "After:".
_BECOMES = re.compile(
    r"^\W*(?:with|to|into|by|after|becomes?|new|now|should be)\b.{0,40}:\W*$", re.IGNORECASE | re.MULTILINE
)


def refuse_prose(edit: ParsedEdit) -> Unresolved | None:
    """Return why a snippet cannot be merged for certain: the prose around it says more than its lines; else None."""
    told = _GOES.search(edit.prose) or _BECOMES.search(edit.prose)
    if told is None:
        return None
    return Unresolved(
        "open_intent",
        f"The text around the code says more than the code shows ('{told[0].strip()}'): lines may have to go.",
        suggestion="Send SEARCH/REPLACE blocks with the lines that change and those that go.",
    )


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


_MIN_ANCHOR_CHARS = 3
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
    """Tell whether each hidden line that is not shown stands there changed, about the same name and no line more."""
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


def can_anchor(line: str) -> bool:
    return sum(char.isalnum() for char in line) >= _MIN_ANCHOR_CHARS


_MIN_REPEATED = 2
_MIN_COPIED_CHARS = 10
# So many times its length below its place, a repeated tail is taken to be the same one.
_FAR = 4


def refuse_twin(index: LineIndex, block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if another place in the file is nearly the same."""
    twin = find_twin(index, block.lines, placement.start, placement.end)
    if twin is not None:
        where = format_span(placement.start, placement.end)
        raise DoubtError("ambiguous", f"The block fits {where}, but line {twin + 1} and below are nearly the same.", 2)


def refuse_rival(index: LineIndex, block: Block, placement: Placement) -> None:
    """Raise `DoubtError` if a block that stands in the file already may have been meant for a place like it.

    Nothing is lost by it, but 'already applied' would be said of an edit that is not.
    """
    solid = [line for line in block.lines if line.strip()]
    rival = find_twin(index, block.lines, placement.start, placement.end, share=0.5, at_least=2)
    if len(solid) == 1:
        places = range(placement.start, placement.end)
        alike = (at for at, line in enumerate(index.lines) if at not in places and _has_same_key(line, solid[0]))
        rival = next(alike, None)
    if rival is not None:
        where = format_span(placement.start, placement.end)
        raise DoubtError("ambiguous", f"The block stands at {where}, but may be meant for line {rival + 1}.", 2)


def _has_same_key(line: str, other: str) -> bool:
    return find_line_key(line) == find_line_key(other) != "" and get_indent(line) == get_indent(other)


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
        held = 0 <= edge < len(lines) and rstrip_blanks(lines[edge]) == rstrip_blanks(inner)
        if gap > 1 and held and gap != blanks:
            raise DoubtError(
                "open_intent", f"{gap} blank lines stand next to {quote_line(inner)}, {blanks} in the file.", 2
            )


def refuse_copies(new: Sequence[str], index: LineIndex) -> None:
    """Raise `DoubtError` if a new line stands in the file just once: it may be moved, and its place left out."""
    telling = {line.strip() for line in new if sum(map(str.isalnum, line)) >= _MIN_COPIED_CHARS}
    places = index.key_by(str.strip).places if telling else {}
    copied = min(
        (line for line in telling if len(places.get(line, ())) == 1), key=lambda line: places[line], default=None
    )
    if copied is not None:
        raise DoubtError("open_intent", f"The new line {quote_line(copied)} stands elsewhere: it may be moved.", 2)


def refuse_known(index: LineIndex, block: Block, edge: Edge) -> None:
    """Raise `DoubtError` if a new line stands twice in the block, or elsewhere in the file: it may be an old one."""
    counts = Counter(line.strip() for line in block.lines)
    again = next((line for line in edge.new if can_anchor(line) and counts[line.strip()] > 1), None)
    if again is not None:
        raise DoubtError("ambiguous", f"The line {quote_line(again)} stands twice in the edit.", 2)
    outer = min(len(get_indent(line)) for line in edge.new if line.strip())
    shown = {line.strip() for line in edge.new if len(get_indent(line)) == outer and can_anchor(line)}
    places = index.key_by(str.strip).places
    known = min((line for line in shown if line in places), key=lambda line: places[line], default=None)
    if known is not None:
        raise DoubtError("ambiguous", f"The line {quote_line(known)} stands elsewhere: it may be context, not new.", 2)


def refuse_same_neighbours(lines: Sequence[str], at: int) -> None:
    """Raise `DoubtError` if the lines on both sides of a block's border are equal: it may as well end at the other."""
    if 0 < at < len(lines) and lines[at].strip() and rstrip_blanks(lines[at - 1]) == rstrip_blanks(lines[at]):
        raise DoubtError(
            "ambiguous", f"The line {quote_line(lines[at])} stands on both sides of the end of a block.", 2
        )


def refuse_repeated_tail(lines: list[str], start: int, end: int) -> None:
    """Raise `DoubtError` if the last lines of a block stand again right below: what lies between may be meant to go."""
    tail = [rstrip_blanks(line) for line in lines[start:end]]
    if sum(map(can_anchor, tail)) < _MIN_REPEATED:
        return
    below = [rstrip_blanks(line) for line in lines[end : end + _FAR * len(tail)]]
    if next(find_runs(below, tail), None) is not None:
        raise DoubtError("ambiguous", f"The last lines of the block, {start + 1}-{end}, stand again right below.", 2)
