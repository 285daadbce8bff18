"""Detects changes that are already applied to a text.

That the new lines are in the text is no proof: kept lines always are, short lines are by chance, and SEARCH may have
missed its place by a typo. `doubt` says what cannot be decided.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

from editor.diff import line_opcodes
from editor.errors import format_span
from editor.match.ladder import LineIndex, Places, find_places, strip_blanks
from editor.match.near_miss import NearMatch, find_nearest
from editor.types import Replacement, Rung

# Fewer letters and digits than this are in a file by chance, unless the new text is much like the old one.
MIN_EVIDENCE = 8
_MIN_EVIDENCE_IF_ALIKE = 2
_ALIKE = 60.0
# A place this similar to the SEARCH lines (per cent) may be the one that was meant.
_NEAR = 85.0
# So many characters that SEARCH does not have are in the file because of this edit, or an equal one.
_CLEAR_EVIDENCE = 40
_MAX_CHARS = 20_000
_MAX_SHOWN = 5
TOO_SHORT = "they are too short to show that the edit is made"


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """The new lines of a change are at lines [start, end) of the text.

    `doubt` says why that does not prove that the change is applied, '' if it does. `proven` says that kept lines above
    and below the new ones, or the line number, confirm the place.
    """

    start: int
    end: int
    rung: Rung
    doubt: str = ""
    proven: bool = False

    @property
    def message(self) -> str:
        """Return a sentence for the sender: where the new lines are, and what is in doubt."""
        but = f", but {self.doubt}" if self.doubt else ""
        return f" The REPLACE lines stand at {format_span(self.start, self.end)} already{but}."


def find_applied(index: LineIndex, change: Replacement, expected: Collection[int] = ()) -> AppliedChange | None:
    """Return where the new lines of a change are; None if they are not in the text, or prove nothing.

    `expected` are the line indices at which an earlier application would have left them. The old lines must not be
    in the text.
    """
    after = change.after
    at_hint = find_applied_at(index.lines, change, expected)
    if at_hint is not None or not _has_words(after):
        return at_hint
    there = find_places(index, after)
    if there is None or (there.rung not in ("exact", "trailing_space") and _count_solid(after) < 2):
        return None
    start, end = there.starts[0], there.starts[0] + len(after)
    doubt = _find_doubt_of_places(index, change, there)
    return AppliedChange(start, end, there.rung, doubt, proven=not doubt and is_held(change))


def find_applied_at(lines: Sequence[str], change: Replacement, expected: Collection[int]) -> AppliedChange | None:
    """Return where the new lines of a change are if exactly at one of the expected lines, else None.

    The line number is stronger evidence than a few letters: any new word counts.
    """
    after = change.after
    start = next((at for at in expected if after and tuple(lines[at : at + len(after)]) == after), None)
    if start is None or not _list_solid(after):
        return None
    doubt = _find_doubt_of_deletion(lines, change, start, min_words=1) if _has_words(change.after) else TOO_SHORT
    return AppliedChange(start, start + len(change.after), "exact", doubt, proven=not doubt)


def is_evidence(old: str, new: str) -> bool:
    """Return whether a new text is long enough, or similar enough to the old one, not to be in a file by chance."""
    evidence = sum(map(str.isalnum, new))
    return evidence >= MIN_EVIDENCE or (evidence >= _MIN_EVIDENCE_IF_ALIKE and fuzz.ratio(old, new) >= _ALIKE)


def find_near_miss(index: LineIndex, change: Replacement, start: int) -> NearMatch | None:
    """Return a place as similar to the old lines as the new lines at `start` are; None if there is none.

    The same lines at another depth are another place, and no near miss.
    """
    end = start + len(change.after)
    if not any(line.strip() for line in change.before) or not index.searches_left:
        return None
    index.searches_left -= 1
    sought = [strip_blanks(line) for line in change.before]
    distance = _count_differences(change.before, change.after)
    for place in find_nearest(index, change.before, 4):
        found = index.lines[place.start : place.end]
        is_apart = place.end <= start or end <= place.start
        is_near = place.likeness >= _NEAR and _count_differences(change.before, found) <= distance
        if is_apart and is_near and [strip_blanks(line) for line in found] != sought:
            return place
    return None


def _count_differences(before: Sequence[str], other: Sequence[str]) -> int:
    """Return in how many lines two runs of lines differ."""
    ops = line_opcodes(before, other)
    return sum(max(op.a_end - op.a_start, op.b_end - op.b_start) for op in ops if not op.equal)


def _find_doubt_of_places(index: LineIndex, change: Replacement, there: Places) -> str:
    if len(there.starts) > 1:
        return describe_repeats([at + 1 for at in there.starts[1:]])
    if not is_evidence("\n".join(change.before), "\n".join(change.after)):
        return TOO_SHORT
    return find_doubt(index, change, there.starts[0])


def describe_repeats(rows: Sequence[int]) -> str:
    """Return the doubt that the new lines are at these line numbers too."""
    listed = ", ".join(map(str, rows[:_MAX_SHOWN]))
    return f"they stand at line {listed} too, so that nothing tells which of them is this edit's"


def find_doubt(index: LineIndex, change: Replacement, start: int) -> str:
    """Return why new lines at a single place do not prove that their change is applied; '' if they do."""
    if doubt := _find_doubt_of_deletion(index.lines, change, start):
        return doubt
    if beside := _find_removed_line(index.lines, change, start):
        return f"line {beside} is nearly a line of SEARCH"
    if around := _find_old_lines(index.lines, change, start):
        return f"{format_span(*around)} are nearly the lines of SEARCH"
    if _count_new_chars(change) >= _CLEAR_EVIDENCE:
        return ""
    near = find_near_miss(index, change, start)
    return f"{format_span(near.start, near.end)} may be what SEARCH means" if near is not None else ""


def _count_new_chars(change: Replacement) -> int:
    """Return how many characters of the new lines the old ones do not have."""
    before, after = "\n".join(change.before), "\n".join(change.after)
    if len(before) + len(after) > _MAX_CHARS:
        return sum(len(line.strip()) for line in set(change.after) - set(change.before))
    return len(after) - LCSseq.similarity(before, after)


def _find_doubt_of_deletion(
    lines: Sequence[str], change: Replacement, start: int, min_words: int = MIN_EVIDENCE
) -> str:
    """Return the doubt about a deletion, which kept lines on both sides, or the file's ends, have to confirm."""
    ops = [op for op in line_opcodes(change.before, change.after) if not op.equal]
    words = sum(map(str.isalnum, "".join("".join(change.after[op.b_start : op.b_end]) for op in ops)))
    if words >= min_words:
        return ""
    for op in ops:
        above = not start or _list_solid(change.after[: op.b_start])
        below = start + len(change.after) == len(lines) or _list_solid(change.after[op.b_end :])
        if not _has_words(change.after[op.b_start : op.b_end]) and not (above and below):
            return "the lines to delete are at an end of SEARCH, so that nothing shows whether they are gone"
    return ""


def _find_removed_line(lines: Sequence[str], change: Replacement, start: int) -> int:
    """Return the number of a line next to the new lines that is similar to a line to delete; 0 if there is none."""
    ops = line_opcodes(change.before, change.after)
    above, below = range(start - 1, -1, -1), range(start + len(change.after), len(lines))
    for op, rows in ((ops[0], above), (ops[-1], below)):
        if op.equal or op.a_end - op.a_start <= op.b_end - op.b_start:
            continue
        removed = [line.strip() for line in change.before[op.a_start : op.a_end] if _has_words((line,))]
        for row in rows[: op.a_end - op.a_start]:
            if any(fuzz.ratio(line, lines[row].strip()) >= _NEAR for line in removed):
                return row + 1
    return 0


def _find_old_lines(lines: Sequence[str], change: Replacement, start: int) -> tuple[int, int] | None:
    """Return the lines around the new ones if they are nearly all of the old ones, else None.

    For example the kept lines `end`, `end` around two methods are also there before the first method is deleted.
    """
    removed = len(change.before) - len(change.after)
    for first in (start - removed, start):
        end = first + len(change.before)
        is_inside = first >= 0 and end <= len(lines)
        if removed > 1 and is_inside and _count_differences(change.before, lines[first:end]) <= removed // 2:
            return first, end
    return None


def is_held(change: Replacement) -> bool:
    """Return whether kept lines with words are above the first and below the last of the new lines."""
    ops = line_opcodes(change.before, change.after)
    return len(ops) > 2 and all(
        op.equal and _has_words(change.after[op.b_start : op.b_end]) for op in (ops[0], ops[-1])
    )


def has_new_words(change: Replacement) -> bool:
    """Return whether a new line with words is none of the old lines."""
    return any(line not in change.before and any(map(str.isalnum, line)) for line in change.after)


def _list_solid(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def _count_solid(lines: Sequence[str]) -> int:
    return len(_list_solid(lines))


def _has_words(lines: Sequence[str]) -> bool:
    return any(char.isalnum() for line in lines for char in line)
