"""Read real texts before and after an edit, and make larger merges of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from random import Random

from benchmarks.cases import Case, load_cases_at
from benchmarks.edit_formats import diff_texts
from editor.definitions import Symbol
from editor.grammars import find_language
from editor.syntax import Survey, survey


@dataclass(frozen=True, slots=True)
class Pair:
    """One file before and after an edit. `path` names it, for its language; "" where that is not known."""

    id: str
    path: str
    before: str
    after: str


def read_pairs(path: Path, min_lines: int = 0) -> list[Pair]:
    """Return the pairs of all cases at or below `path`, in their order, each once.

    `min_lines` is the least length of the text before. Left out are cases that must be refused or change nothing, those
    whose expected text follows another program's policy or is inexact in its blanks (`Case.inexact`, except EditEval,
    where only the final newline is), and files that a patch creates, deletes or moves.
    """
    found: dict[tuple[str, str], Pair] = {}
    for case in load_cases_at(path).cases:
        if isinstance(case, Case):
            if case.expects == "text" and case.shape != "unit_test" and (case.shape == "edit_eval" or not case.inexact):
                sides = {case.path: (case.original, case.expected)}
            else:
                sides = {}
        elif case.refused:
            sides = {}
        else:
            sides = {name: (text, case.expected[name]) for name, text in case.files.items() if name in case.expected}
        for name, (before, after) in sides.items():
            if before != after and before and after and before.count("\n") >= min_lines:
                found.setdefault((before, after), Pair(case.id, name, before, after))
    return list(found.values())


_MAX_EDITED_LINES = 60
_MAX_FILLER_LINES = 300
_MAX_NEIGHBOUR_LINES = 12
_LINES_WITH_NEIGHBOURS = 90
_SLACK = 0.04
_KINDS = frozenset({"function", "class", "interface", "type", "enum", "struct"})


@dataclass(frozen=True, slots=True)
class _Part:
    """A top-level definition before and after; both are equal if it only makes the file long."""

    name: str
    before: str
    after: str
    num_hunks: int

    @property
    def num_lines(self) -> int:
        return self.before.count("\n") + 1


def make_merge(cases: Sequence[Pair], num_lines: int, num_hunks: int, seed: int) -> Pair:
    """Make one merge of about `num_lines` lines with `num_hunks` hunks from the definitions of real pairs.

    Hunks are counted in each definition; a diff of the whole file may split one. The language (Python or TypeScript) is
    drawn among those with enough edits; raises ValueError if none has.
    """
    rng = Random(f"merge\0{num_hunks}\0{seed}")
    suffixes = [".py", ".ts"]
    rng.shuffle(suffixes)
    for suffix in suffixes:
        found = tuple(pair for pair in cases if pair.path.endswith(suffix))
        edited = _draw(_find_edited_parts(found), num_hunks, rng)
        if edited:
            groups = [[part] for part in edited]
            if num_lines >= _LINES_WITH_NEIGHBOURS * num_hunks:
                groups = _add_neighbours(edited, _collect_parts(found), rng)
            fixed = [part for group in groups for part in group]
            filling = Random(f"fill\0{num_lines}\0{num_hunks}\0{seed}")
            groups += [[part] for part in _draw_fillers(_collect_parts(found), num_lines, fixed, filling)]
            filling.shuffle(groups)
            parts = [part for group in groups for part in group]
            return _join(parts, f"merge-{num_lines}-{num_hunks}-{seed}", f"merged{suffix}", suffix)
    raise ValueError(f"the cases hold no {num_hunks} hunks in definitions of one language")


def _join(parts: Sequence[_Part], name: str, path: str, suffix: str) -> Pair:
    between = "\n\n\n" if suffix == ".py" else "\n\n"
    before = between.join(part.before for part in parts) + "\n"
    after = between.join(part.after for part in parts) + "\n"
    return Pair(name, path, before, after)


def _draw(parts: Iterable[_Part], num_hunks: int, rng: Random) -> list[_Part]:
    """Draw parts of different names whose hunks add up, [] if they do not."""
    found = list(parts)
    rng.shuffle(found)
    chosen: dict[str, _Part] = {}
    for part in found:
        left = num_hunks - sum(one.num_hunks for one in chosen.values())
        if part.num_hunks <= left and part.name not in chosen:
            chosen[part.name] = part
    return list(chosen.values()) if sum(one.num_hunks for one in chosen.values()) == num_hunks else []


@lru_cache(maxsize=4)
def _find_edited_parts(cases: tuple[Pair, ...]) -> tuple[_Part, ...]:
    found: dict[tuple[str, str], _Part] = {}
    for pair in cases:
        old, new = _sound_survey(pair.before, pair.path), _sound_survey(pair.after, pair.path)
        if old is None or new is None:
            continue
        for name in sorted(_top_level(old).keys() & _top_level(new).keys()):
            part = _find_edited_part(name, pair, old, new)
            if part is not None:
                found.setdefault((part.before, part.after), part)
    return tuple(found.values())


def _find_edited_part(name: str, pair: Pair, old: Survey, new: Survey) -> _Part | None:
    before, after = pair.before.split("\n"), pair.after.split("\n")
    own = _text(before, _top_level(old)[name]), _text(after, _top_level(new)[name])
    if own[0] == own[1]:
        return None
    members = _members(before, old, name), _members(after, new, name)
    alike = {member for member, text in members[0].items() if members[1].get(member) == text}
    cut = [_leave_out(lines, seen, _top_level(seen)[name], alike) for lines, seen in ((before, old), (after, new))]
    if cut[0] == cut[1] or any(text.count("\n") >= _MAX_EDITED_LINES for text in cut):
        return None
    if any(_sound_survey(text, pair.path) is None for text in cut):
        return None
    return _Part(name, cut[0], cut[1], len(diff_texts(cut[0].split("\n"), cut[1].split("\n"))))


def _add_neighbours(edited: Sequence[_Part], parts: Sequence[_Part], rng: Random) -> list[list[_Part]]:
    """Put a short unchanged definition above and below each edited one, as far as there are any."""
    names = {part.name for part in edited}
    short = [part for part in parts if part.num_lines <= _MAX_NEIGHBOUR_LINES and part.name not in names]
    rng.shuffle(short)
    return [[*short[2 * at : 2 * at + 1], part, *short[2 * at + 1 : 2 * at + 2]] for at, part in enumerate(edited)]


def _draw_fillers(parts: Sequence[_Part], num_lines: int, fixed: Sequence[_Part], rng: Random) -> list[_Part]:
    """Draw unchanged definitions until the file has `num_lines` lines, a little less or more."""
    names = {part.name for part in fixed}
    pool = [part for part in parts if part.name not in names]
    left = num_lines - sum(part.num_lines + 2 for part in fixed)
    slack = _SLACK * num_lines
    drawn: list[_Part] = []
    number = 1
    while left > slack and pool:
        rng.shuffle(pool)
        before = len(drawn)
        for part in pool:
            if part.num_lines + 2 > left + slack or left <= slack:
                continue
            one = part if number == 1 else _number_names(part, number)
            if one.name not in names:
                names.add(one.name)
                drawn.append(one)
                left -= one.num_lines + 2
        number += 1
        if len(drawn) == before and number > 2:
            break
    return drawn


def _number_names(part: _Part, number: int) -> _Part:
    name = f"{part.name}{number}"
    text = re.sub(rf"\b{re.escape(part.name)}\b", name, part.before)
    return replace(part, name=name, before=text, after=text)


@lru_cache(maxsize=4)
def _collect_parts(cases: tuple[Pair, ...]) -> tuple[_Part, ...]:
    found: dict[str, _Part] = {}
    for pair in cases:
        seen = _sound_survey(pair.before, pair.path)
        lines = pair.before.split("\n")
        for name, symbol in (_top_level(seen) if seen else {}).items():
            text = _text(lines, symbol)
            if text.count("\n") < _MAX_FILLER_LINES and name not in found and _sound_survey(text, pair.path):
                found[name] = _Part(name, text, text, 0)
    return tuple(found.values())


def _sound_survey(text: str, path: str) -> Survey | None:
    seen = survey(text, find_language(path))
    return None if seen is None or seen.error_lines else seen


def _top_level(seen: Survey) -> dict[str, Symbol]:
    """Return the definitions at top level whose names stand once, by name."""
    counts = Counter(symbol.name for symbol in seen.symbols)
    return {
        symbol.name: symbol
        for symbol in seen.symbols
        if symbol.depth == 0 and symbol.kind in _KINDS and counts[symbol.name] == 1 and symbol.name.isidentifier()
    }


def _members(lines: Sequence[str], seen: Survey, name: str) -> dict[str, str]:
    top = next(at for at, symbol in enumerate(seen.symbols) if symbol.name == name and symbol.depth == 0)
    members = [symbol for symbol in seen.symbols if symbol.parent == top and symbol.kind == "method"]
    counts = Counter(symbol.name for symbol in members)
    return {symbol.name: _text(lines, symbol) for symbol in members if counts[symbol.name] == 1}


def _leave_out(lines: Sequence[str], seen: Survey, own: Symbol, names: set[str]) -> str:
    """Return a definition's text without the members of these names and the blank lines after each."""
    gone: set[int] = set()
    for symbol in seen.symbols:
        if symbol.name in names and own.first_line <= symbol.first_line < own.end_line and symbol.kind == "method":
            end = symbol.end_line
            while end < own.end_line and not lines[end].strip():
                end += 1
            gone.update(range(symbol.doc_line, end))
    return "\n".join(lines[at] for at in range(own.doc_line, own.end_line) if at not in gone).rstrip("\n")


def _text(lines: Sequence[str], symbol: Symbol) -> str:
    return "\n".join(lines[symbol.doc_line : symbol.end_line])
