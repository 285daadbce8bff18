"""One corruption planted into a right result: outside of the edit, or in what the edit changed.

outside           a line that the edit leaves alone, with other such lines (not blank) on both sides
  out_deleted       is gone
  out_duplicated    stands twice
  out_moved         stands up to four lines further down
  out_inserted      has a new line above it
  out_token         has one token altered
  out_indented      is indented more or less
  out_ending        ends with another line ending
within            a run of lines that the edit writes
  new_altered       one token of a new line is altered
  new_dropped       a new line is gone
  new_doubled       a new line stands twice
  new_reordered     two new lines have changed places
  new_higher        the run stands one line higher
  new_lower         the run stands one line lower
  new_in_sibling    the run stands in the sibling definition, its own place is as it was
  old_kept          the lines that the run replaces stand next to it
  neighbour_deleted the kept line next to the run is gone
  twin_deleted      the twin, near by, of a line that the edit shows is gone: of a closing brace where there is one

No blank line is planted or taken away: where blank lines belong, edits seldom say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any

from benchmarks.cases import Case
from benchmarks.edit_formats import Span, diff_texts
from editor import codec
from editor.definitions import Symbol
from editor.grammars import find_language
from editor.syntax import Survey, survey

_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|[<>=!]=?|&&|\|\||[-+*/]")
_CONTRARIES = (("<", ">"), ("<=", ">="), ("==", "!="), ("&&", "||"), ("+", "-"), ("*", "/"), ("=", "+="))
_CONTRARY_WORDS = (("true", "false"), ("True", "False"), ("and", "or"))
_CONTRARY_OF = {one: two for pair in (*_CONTRARIES, *_CONTRARY_WORDS) for one, two in (pair, pair[::-1])} | {"!": ""}
_CLOSER = re.compile(r"^(?:[\])}>;,]+|end;?)$")
_TWIN_REACH = 40
_MAX_MOVE = 4
_TRIES = 12


@dataclass(frozen=True, slots=True)
class Planted:
    r"""A right result with one corruption: its text with "\n" line ends, what was done, and the line (from 1)."""

    name: str
    text: str
    line: int
    what: str


class RightText:
    r"""A right result as lines, aligned with the original's: which are new, which are kept. Lines end with "\n"."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.source = codec.decode(case.original.encode())
        self.text = codec.decode(case.expected.encode()).text
        self.a = self.source.text.split("\n")
        self.b = self.text.split("\n")
        self.spans = diff_texts(self.a, self.b)

    @cached_property
    def new(self) -> frozenset[int]:
        """The lines that the edit writes."""
        return frozenset(at for span in self.spans for at in range(span.b_start, span.b_end))

    @cached_property
    def common(self) -> list[tuple[int, int]]:
        """The lines that the edit leaves alone, by their numbers in the original and here."""
        starts = [(0, 0), *((span.a_end, span.b_end) for span in self.spans)]
        ends = [*((span.a_start, span.b_start) for span in self.spans), (len(self.a), len(self.b))]
        return [
            pair
            for (a, b), (a_end, b_end) in zip(starts, ends, strict=True)
            for pair in zip(range(a, a_end), range(b, b_end), strict=True)
        ]

    @cached_property
    def solid(self) -> list[int]:
        """The lines that are not blank."""
        return [at for at, line in enumerate(self.b) if line.strip()]

    @cached_property
    def outside(self) -> list[int]:
        """Kept lines, not blank, next to no change: between it and the next one stands another such line."""
        near = set(self.new)
        for span in self.spans:
            near |= {at for at in (self.find_above(span.b_start), self.find_below(span.b_end - 1)) if at is not None}
        return [at for at in self.solid if at not in near]

    @cached_property
    def runs(self) -> list[Span]:
        """The changes that write a line that is not blank."""
        return [span for span in self.spans if any(map(str.strip, self.b[span.b_start : span.b_end]))]

    @cached_property
    def survey(self) -> Survey | None:
        """The definitions of the right text; None without a grammar."""
        return survey(self.text, find_language(self.case.path))

    def find_above(self, at: int) -> int | None:
        """Return the next line above that is not blank."""
        return next((one for one in range(at - 1, -1, -1) if self.b[one].strip()), None)

    def find_below(self, at: int) -> int | None:
        """Return the next line below that is not blank."""
        return next((one for one in range(at + 1, len(self.b)) if self.b[one].strip()), None)


Plant = tuple[list[str], int, str]
"""The lines of the planted text, the line (from 0) that was changed, and what was done."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """Finds the places for a corruption in a right result, and makes it at one of them."""

    find: Callable[[RightText], Sequence[Any]]
    make: Callable[[RightText, Any, Random], Plant]


def plant(right: RightText, name: str, seed: int) -> Planted | None:
    """Plant the corruption of this name, at a place drawn by the seed; None where there is no place for it.

    What is written to the file differs from the right result and from the original.
    """
    rng = Random(f"{name}\0{seed}\0{right.case.id}\0{right.case.format}\0{right.case.style}")
    corruption = CORRUPTIONS[name]
    places = corruption.find(right)
    solid = [line.rstrip(" \t") for line in right.b if line.strip()]
    for _ in range(_TRIES if places else 0):
        lines, at, what = corruption.make(right, rng.choice(places), rng)
        if [line.rstrip(" \t") for line in lines if line.strip()] == solid:
            continue
        text = "\n".join(lines)
        data = codec.encode(text, right.source)
        if data not in (right.case.original.encode(), right.case.expected.encode()):
            return Planted(name, text, at + 1, what)
    return None


def _delete(right: RightText, at: int, rng: Random) -> Plant:
    return right.b[:at] + right.b[at + 1 :], at, f"deleted: {right.b[at].strip()}"


def _double(right: RightText, at: int, rng: Random) -> Plant:
    return [*right.b[: at + 1], *right.b[at:]], at, f"doubled: {right.b[at].strip()}"


def _alter(right: RightText, at: int, rng: Random) -> Plant:
    lines = list(right.b)
    lines[at] = alter_token(lines[at], right, rng)
    return lines, at, f"altered: {right.b[at].strip()} -> {lines[at].strip()}"


def _find_moves(right: RightText) -> list[tuple[int, int]]:
    outside = right.outside
    return [
        (outside[one], outside[one + far])
        for far in range(1, _MAX_MOVE + 1)
        for one in range(len(outside) - far)
        if not any(outside[one] < span.b_start <= outside[one + far] for span in right.spans)
    ]


def _move(right: RightText, place: tuple[int, int], rng: Random) -> Plant:
    at, to = place
    lines = [*right.b[:at], *right.b[at + 1 : to + 1], right.b[at], *right.b[to + 1 :]]
    return lines, at, f"moved below line {to + 1}: {right.b[at].strip()}"


def _find_insertions(right: RightText) -> list[int]:
    pairs = zip(right.outside, right.outside[1:], strict=False)
    return [two for one, two in pairs if right.find_below(one) == two]


def _insert(right: RightText, at: int, rng: Random) -> Plant:
    indent = right.b[at][: len(right.b[at]) - len(right.b[at].lstrip())]
    other = right.b[rng.choice(right.solid)].strip()
    line = indent + (alter_token(other, right, rng) if rng.random() < 0.5 else other)
    return [*right.b[:at], line, *right.b[at:]], at, f"inserted: {line.strip()}"


def _indent(right: RightText, at: int, rng: Random) -> Plant:
    line = right.b[at]
    indent = line[: len(line) - len(line.lstrip())]
    unit = "\t" if indent.startswith("\t") else "  " if any(_depth(one) == 2 for one in right.b) else "    "
    less = indent.endswith(unit) and rng.random() < 0.5
    lines = list(right.b)
    lines[at] = line.removeprefix(unit) if less else unit + line
    return lines, at, f"indented {'less' if less else 'more'}: {line.strip()}"


def _find_endings(right: RightText) -> list[int]:
    if "\r\n" in right.source.line_endings:
        return []
    return [at for at in right.outside if at < len(right.b) - 1 and not right.b[at].endswith("\r")]


def _change_ending(right: RightText, at: int, rng: Random) -> Plant:
    return [*right.b[:at], right.b[at] + "\r", *right.b[at + 1 :]], at, f"ends with CR LF: {right.b[at].strip()}"


def _find_swaps(right: RightText) -> list[int]:
    found = [at for at in _list_new_lines(right) if at + 1 in right.new and right.b[at + 1].strip()]
    return [at for at in found if right.b[at].strip() != right.b[at + 1].strip()]


def _swap(right: RightText, at: int, rng: Random) -> Plant:
    b = right.b
    return [*b[:at], b[at + 1], b[at], *b[at + 2 :]], at, f"changed places: {b[at].strip()} | {b[at + 1].strip()}"


def _find_higher(right: RightText) -> list[tuple[Span, int]]:
    found = ((span, right.find_above(span.b_start)) for span in right.runs)
    return [(span, at) for span, at in found if at is not None and at not in right.new]


def _raise_run(right: RightText, place: tuple[Span, int], rng: Random) -> Plant:
    (span, at), b = place, right.b
    lines = [*b[:at], *b[span.b_start : span.b_end], *b[at : span.b_start], *b[span.b_end :]]
    return lines, at, f"{span.b_end - span.b_start} new lines above: {b[at].strip()}"


def _find_lower(right: RightText) -> list[tuple[Span, int]]:
    found = ((span, right.find_below(span.b_end - 1)) for span in right.runs)
    return [(span, at) for span, at in found if at is not None and at not in right.new]


def _lower_run(right: RightText, place: tuple[Span, int], rng: Random) -> Plant:
    (span, at), b = place, right.b
    lines = [*b[: span.b_start], *b[span.b_end : at + 1], *b[span.b_start : span.b_end], *b[at + 1 :]]
    return lines, at, f"{span.b_end - span.b_start} new lines below: {b[at].strip()}"


def _find_sibling_places(right: RightText) -> list[tuple[Span, Symbol, Symbol]]:
    return [(span, own, other) for span in right.runs for own, other in _find_siblings(right, span)]


def _move_to_sibling(right: RightText, place: tuple[Span, Symbol, Symbol], rng: Random) -> Plant:
    (span, own, other), b = place, right.b
    new = b[span.b_start : span.b_end]
    above = right.find_above(span.b_start)
    body = range(_find_body_line(other), other.end_line)
    is_inside = above is not None and above >= _find_body_line(own)
    same = [at for at in body if is_inside and above is not None and b[at].strip() == b[above].strip()]
    to = same[0] + 1 if same else _find_body_line(other)
    undone = [*b[: span.b_start], *right.a[span.a_start : span.a_end], *b[span.b_end :]]
    if to > span.b_start:
        to += len(undone) - len(b)
    return [*undone[:to], *new, *undone[to:]], to, f"{len(new)} new lines of {own.name} in {other.name}"


def _find_replaced(right: RightText) -> list[Span]:
    return [span for span in right.runs if any(map(str.strip, right.a[span.a_start : span.a_end]))]


def _keep_old(right: RightText, span: Span, rng: Random) -> Plant:
    old, new = right.a[span.a_start : span.a_end], right.b[span.b_start : span.b_end]
    both = [*old, *new] if rng.random() < 0.5 else [*new, *old]
    lines = [*right.b[: span.b_start], *both, *right.b[span.b_end :]]
    return lines, span.b_start, f"kept: {next(line.strip() for line in old if line.strip())}"


def _find_neighbours(right: RightText) -> list[int]:
    found = {at for span in right.runs for at in (right.find_above(span.b_start), right.find_below(span.b_end - 1))}
    return sorted(at for at in found if at is not None and at not in right.new)


def _find_twins(right: RightText) -> list[int]:
    """Find lines that the edit shows: its changes and what stands next to them; closing braces if there are any."""
    shown = set(map(str.strip, right.case.edit.split("\n"))) | {
        line[1:].strip() for line in right.case.edit.split("\n") if line[:1] in (" ", "+")
    }
    near = {at for span in right.runs for at in range(span.b_start - _TWIN_REACH, span.b_end + _TWIN_REACH)}
    found = [at for at in right.outside if at in near and right.b[at].strip() in shown]
    found = [at for at in found if sum(line.strip() == right.b[at].strip() for line in right.b) > 1]
    return [at for at in found if _CLOSER.match(right.b[at].strip())] or found


def _find_tokens(right: RightText, lines: Sequence[int]) -> list[int]:
    return [at for at in lines if _TOKEN.search(right.b[at])]


def _list_new_lines(right: RightText) -> list[int]:
    return [at for at in sorted(right.new) if right.b[at].strip()]


def alter_token(line: str, right: RightText, rng: Random) -> str:
    """Alter one token: a number by one, an operator or a truth value to its contrary, a name to another of the file."""
    tokens = list(_TOKEN.finditer(line))
    if not tokens:
        return line + " 0"
    token = rng.choice(tokens)
    word = token.group()
    if word.isdigit():
        other = str(int(word) + 1)
    elif word in _CONTRARY_OF:
        other = _CONTRARY_OF[word]
    else:
        names = re.findall(r"[A-Za-z_]\w*", right.b[rng.choice(right.solid)])
        other = rng.choice(names) if names and rng.random() < 0.5 else word + "_"
        other = other if other != word else word + "_"
    return line[: token.start()] + other + line[token.end() :]


def _find_siblings(right: RightText, span: Span) -> list[tuple[Symbol, Symbol]]:
    """Return the innermost definition around a run of new lines with each sibling that nothing changed in."""
    symbols = right.survey.symbols if right.survey else ()
    own = [one for one in symbols if _find_body_line(one) <= span.b_start and span.b_end <= one.end_line]
    if not own:
        return []
    inner = own[-1]
    others = [one for one in symbols if one.parent == inner.parent and one.kind == inner.kind and one != inner]
    touched = [at for change in right.spans for at in range(change.b_start, max(change.b_end, change.b_start + 1))]
    free = [one for one in others if not any(one.first_line <= at < one.end_line for at in touched)]
    return [(inner, one) for one in free if one.end_line - _find_body_line(one) >= 2]


def _find_body_line(symbol: Symbol) -> int:
    return max(symbol.name_line + 1, symbol.body_line if symbol.body_line is not None else 0)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" ")) if line.strip() else 0


OUTSIDE = {
    "out_deleted": Corruption(lambda right: right.outside, _delete),
    "out_duplicated": Corruption(lambda right: right.outside, _double),
    "out_moved": Corruption(_find_moves, _move),
    "out_inserted": Corruption(_find_insertions, _insert),
    "out_token": Corruption(lambda right: _find_tokens(right, right.outside), _alter),
    "out_indented": Corruption(lambda right: right.outside, _indent),
    "out_ending": Corruption(_find_endings, _change_ending),
}
WITHIN = {
    "new_altered": Corruption(lambda right: _find_tokens(right, _list_new_lines(right)), _alter),
    "new_dropped": Corruption(_list_new_lines, _delete),
    "new_doubled": Corruption(_list_new_lines, _double),
    "new_reordered": Corruption(_find_swaps, _swap),
    "new_higher": Corruption(_find_higher, _raise_run),
    "new_lower": Corruption(_find_lower, _lower_run),
    "new_in_sibling": Corruption(_find_sibling_places, _move_to_sibling),
    "old_kept": Corruption(_find_replaced, _keep_old),
    "neighbour_deleted": Corruption(_find_neighbours, _delete),
    "twin_deleted": Corruption(_find_twins, _delete),
}
CORRUPTIONS: Mapping[str, Corruption] = {**OUTSIDE, **WITHIN}
