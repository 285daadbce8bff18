"""Doubts about a lazy snippet that no rule dispels: its open edges, twins, copies and hidden deletions.

Between two anchors a sketch shows every line, so nothing is open there. At an edge the placeholder hides the file's
next lines, and the same snippet can mean "add this" or "put this in the place of what is hidden":

    # ... existing code ...         timeout = 30        added, or instead of line 1?
    timeout = 60                    retries = 5
    retries = 5

So an insertion at an edge has to pass every test of this file, and is left to the model otherwise.

A block that shows a line of a similar place (its twin) is anchored there. In a test file where one case already has the
new argument, a snippet that adds it to the next case reads like the first one. So near twins are left to the model.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz import fuzz, process

from editor.errors import format_span
from editor.match.ladder import LineIndex, find_runs, get_indent, measure_width, rstrip_blanks
from editor.snippets import COMMENT, strip_strings
from editor.types import ReasonCode

_CLOSERS = {")": "(", "]": "[", "}": "{"}
_CLOSING_LINE = re.compile(r"[\s)\]};,]*")
NOTE = re.compile(
    r"\s*(//|#|/\*|<!--|--|;|%|\*)\s*(.*\b(remov|delet|renam|mov|replac)(e|es|ed|ing)\b|[\w./\\@-]+\.\w{1,5}\s*(\*/|-->)?$)",
    re.IGNORECASE,
)
_CONTINUES = re.compile(
    r"\s*(else|elif|elsif|except|finally|catch|rescue|ensure|while|until|and|or|then|\.|\?|&&|\|\|)"
)
_FIELD = re.compile(r"\s*[\"']?([\w.$-]+)[\"']?\s*(?::(?!:)|:?=(?!=))")
_DEFINITION = re.compile(r"\b(?:def|class|function\*?|func|fn|interface|struct|enum|trait|type|module)\s+([\w$]+)")
_DECLARATION = re.compile(
    r"\s*(?:@[\w.]|#\[|(?:from|import|use|using|#include)\b|[\"']?[\w.$-]+[\"']?\s*:(?!:)\s*\S|"
    r"(?!(?:if|for|while|switch|catch|with|match|return)\b)(?:[\w$<>,\[\]*&]+\s+)*[\w$]+\s*\([^;=)]*\)[^;=]*\{\s*$)"
)
_HEAD = re.compile(r"\s*(?:async\s+)?(?:def|class|if|for|while|with|try|match)\b.*:\s*(?:#.*)?$")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*")
# Words that stand before the name that a line is about, in the languages that have grammars here.
_MODIFIERS = re.compile(
    r"abstract|as|async|auto|await|bool|boolean|case|char|class|const|constructor|def|default|defer|delete|do|"
    r"double|enum|export|extends|extern|final|float|fn|for|foreach|from|func|function|get|go|if|impl|import|in|"
    r"inline|int|interface|internal|let|long|mod|module|mut|namespace|new|of|open|override|package|private|"
    r"protected|pub|public|readonly|return|self|set|short|signed|static|string|struct|super|switch|this|throw|"
    r"trait|try|type|typedef|typeof|union|unsigned|use|using|val|var|virtual|void|volatile|while|with|yield"
)
# Per cent of rapidfuzz's ratio: of a whole chunk, and of a single line, where a name alone makes up much.
_LIKE_A_REWRITE = 80
_LIKE_A_VARIANT = 85
_MAX_SCOPE_LINES = 2_000
MAX_READ = 2_000_000
"""The lines that all readings of one edge have together."""

MAX_COMPARED = 500_000
"""The pairs of a new line and a line that a placeholder hides that are compared for one edge."""


class DoubtError(Exception):
    """A place or an intent that no rule decides; becomes `Unresolved`."""

    def __init__(self, code: ReasonCode, reason: str, num_candidates: int = 0) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.num_candidates = num_candidates


@dataclass(frozen=True, slots=True)
class Edge:
    """How an edge reads: the first `consumed` of its lines (outwards from the anchor) are lines of the file."""

    consumed: int
    new: tuple[str, ...]


def read_edge(inner: Sequence[str], outer: Sequence[str], anchor: str, *, upward: bool, at_least: int = 0) -> Edge:
    """Return the only reading of an edge; raises `DoubtError` where there are none or several.

    `inner` are the block's lines and `outer` the file's, both outwards from the anchor line (so upside down for an
    upper edge). Reading `k` takes the first k lines as lines of the file and the rest as new; it holds if the new
    lines are closed in themselves. Where readings differ only in blank lines, the one that takes fewest is meant.
    """
    common = 0
    while common < min(len(inner), len(outer)) and rstrip_blanks(inner[common]) == rstrip_blanks(outer[common]):
        common += 1
    if common == len(inner):
        return Edge(common, ())
    if (common + 1) * len(inner) > MAX_READ:
        raise DoubtError("open_intent", f"The {len(inner)} lines next to a placeholder are too many to be told apart.")
    readings: dict[tuple[str, ...], Edge] = {}
    for taken in range(at_least, common + 1):
        new = tuple(reversed(inner[taken:])) if upward else tuple(inner[taken:])
        below = [*reversed(inner[:taken]), anchor] if upward else outer[taken:]
        if is_closed(new, next((line for line in below if line.strip()), "")):
            readings.setdefault(tuple(line for line in new if line.strip()), Edge(taken, new))
    if len(readings) != 1:
        what = "do not form a whole by themselves" if not readings else "can be read in more than one way"
        raise DoubtError(
            "open_intent", f"The new lines {quote_line(inner[common])} next to a placeholder {what}.", len(readings)
        )
    return next(iter(readings.values()))


def is_closed(new: Sequence[str], below: str) -> bool:
    """Return whether lines can be added as they are: brackets pair up, and the line below is not taken in by them."""
    solid = [line for line in new if line.strip()]
    if not solid or not _has_balanced_brackets(solid) or _HEAD.match(solid[-1]):
        return False
    base = measure_width(solid[0])
    if any(measure_width(line) < base for line in solid) or _CONTINUES.match(solid[0]):
        return False
    return measure_width(below) <= base and not _CONTINUES.match(below)


def check_edge(edge: Edge, outer: Sequence[str], *, upward: bool, gap: bool) -> None:
    """Raise `DoubtError` unless the new lines of an edge are surely an addition to what the placeholder hides.

    `gap` tells whether the edit has a blank line between the new lines and the placeholder.
    """
    beyond = outer[edge.consumed :]
    neighbour = beyond[0] if beyond else ""
    shown = quote_line(next(line for line in edge.new if line.strip()))
    if not _CLOSING_LINE.fullmatch(neighbour):
        raise DoubtError(
            "open_intent",
            f"The new lines {shown} may be meant beside or instead of the line {quote_line(neighbour)}.",
            2,
        )
    solid = [line for line in edge.new if line.strip()]
    hidden = [line for line in beyond if line.strip()]
    if not hidden:
        raise DoubtError("open_intent", f"The placeholder next to the new lines {shown} stands for no line.", 2)
    if not any(_list_statements(solid)) and not (upward and edge.new[-1].strip() and _is_closed_comment(solid)):
        raise DoubtError("open_intent", f"Nothing says what the new comment {shown} belongs to.", 2)
    step = next((line for line in _list_statements(solid) if not _is_declaration(line)), None)
    if step is not None:
        # A step of a procedure is as often put in the place of others as beside them; a new definition hardly is.
        raise DoubtError("open_intent", f"The new line {quote_line(step)} may stand for lines that are left out.", 2)
    flat = all(measure_width(line) == measure_width(solid[0]) and not COMMENT.match(line) for line in solid)
    if flat and not gap and not neighbour.strip():
        raise DoubtError(
            "open_intent", f"The new lines {shown} may belong right next to the line {quote_line(hidden[0])}.", 2
        )
    if rstrip_blanks(hidden[0]) == rstrip_blanks(solid[0] if upward else solid[-1]):
        raise DoubtError(
            "open_intent", f"The new lines {shown} repeat the line {quote_line(hidden[0])} next to them.", 2
        )
    keys = {find_line_key(line) for line in hidden} - {""}
    clash = next((line for line in _list_statements(solid) if find_line_key(line) in keys), None)
    if clash is not None:
        raise DoubtError("open_intent", f"A line like {quote_line(clash)} stands among the lines that are left out.", 2)
    if len(solid) * len(hidden) > MAX_COMPARED and len(list(_list_statements(solid))) * len(hidden) > MAX_COMPARED:
        raise DoubtError("open_intent", f"The new lines {shown} are too many to be compared with those left out.", 2)
    variant = next((line for line in _list_statements(solid) if _has_variant(line, hidden)), None)
    if variant is not None:
        raise DoubtError(
            "open_intent", f"The line {quote_line(variant)} looks like a new form of one that is left out.", 2
        )
    chunk = hidden[: len(solid)]
    likeness = fuzz.ratio("\n".join(solid), "\n".join(reversed(chunk) if upward else chunk))
    if likeness >= _LIKE_A_REWRITE:
        raise DoubtError("open_intent", f"The new lines {shown} look like a rewrite of the lines next to them.", 2)


def _is_closed_comment(solid: Sequence[str]) -> bool:
    text = "\n".join(solid)
    return all(text.count(opener) == text.count(closer) for opener, closer in (("/*", "*/"), ("<!--", "-->")))


def _is_declaration(line: str) -> bool:
    return _DEFINITION.search(line) is not None or _DECLARATION.match(line) is not None


def is_closing_line(line: str) -> bool:
    """Return whether a line holds nothing but closing brackets."""
    return bool(line.strip()) and _CLOSING_LINE.fullmatch(line) is not None


def has_same_field(line: str, other: str) -> bool:
    """Return whether two lines give the same name its value or meaning (`retries: 3,` and `retries: 5,`)."""
    for pattern in (_FIELD, _DEFINITION):
        one, two = pattern.match(line.strip()), pattern.match(other.strip())
        if one and two and one[1] == two[1]:
            # `x = f(x)` goes on from the value before it, so both lines may be meant.
            return one[1] not in _IDENTIFIER.findall(other[other.find(one[1]) + len(one[1]) :])
    return False


def _has_variant(line: str, hidden: Sequence[str]) -> bool:
    # Heads of blocks are all alike but for the name, and the name was looked at.
    if find_line_key(line) and line.rstrip().endswith(("{", ":")):
        return False
    return process.extractOne(line, hidden, scorer=fuzz.ratio, score_cutoff=_LIKE_A_VARIANT) is not None


def check_addition(new: Sequence[str], index: LineIndex, at: int) -> None:
    """Raise `DoubtError` if new lines before line `at` define again what the file or the scope there has."""
    names = {match[1] for line in new if (match := _DEFINITION.search(line)) and not COMMENT.match(line)}
    places = index.key_by(_find_defined_name).places if names else {}
    again = min((places[name][0] for name in names if name in places), default=None)
    if again is not None:
        raise DoubtError(
            "open_intent", f"The edit adds what the file already defines: {quote_line(index.lines[again])}.", 2
        )
    solid = [line for line in new if line.strip()]
    fields = {match[1] for line in _list_statements(solid) if (match := _FIELD.match(line))}
    width = min((measure_width(line) for line in solid), default=0)
    for line in _list_scope_lines(index.lines, at, width) if fields else ():
        match = _FIELD.match(line)
        if match and match[1] in fields:
            raise DoubtError("open_intent", f"The edit adds {match[1]} beside the line {quote_line(line)}.", 2)


def _find_defined_name(line: str) -> str:
    match = _DEFINITION.search(line)
    return match[1] if match else ""


@lru_cache(maxsize=1 << 16)
def find_line_key(line: str) -> str:
    """Return the name that a line is about ("retries" of `const retries = 3;`), '' if there is none."""
    if COMMENT.match(line):
        return ""
    return next((word for word in _IDENTIFIER.findall(line) if not _MODIFIERS.fullmatch(word)), "")


def quote_line(line: str) -> str:
    """Return a line as it is shown in a reason."""
    text = line.strip()
    return f"'{text}'" if len(text) <= 60 else f"'{text[:57]}...'"


def _list_statements(solid: Sequence[str]) -> Iterator[str]:
    """Yield the outermost of some lines, without comments and closing brackets."""
    width = min((measure_width(line) for line in solid), default=0)
    for line in solid:
        if measure_width(line) == width and not _CLOSING_LINE.fullmatch(line) and not COMMENT.match(line):
            yield line


def _list_scope_lines(lines: Sequence[str], at: int, width: int) -> Iterator[str]:
    """Yield the lines around `at` with just this indentation, up and down to where the indentation is left."""
    for step in (range(at - 1, max(-1, at - _MAX_SCOPE_LINES), -1), range(at, min(len(lines), at + _MAX_SCOPE_LINES))):
        for index in step:
            if lines[index].strip() and measure_width(lines[index]) < width:
                break
            if measure_width(lines[index]) == width:
                yield lines[index]


def _has_balanced_brackets(lines: Sequence[str]) -> bool:
    open_brackets: list[str] = []
    for line in lines:
        for char in strip_strings(line):
            if char in "([{":
                open_brackets.append(char)
            elif char in _CLOSERS and (not open_brackets or open_brackets.pop() != _CLOSERS[char]):
                return False
    return not open_brackets


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
