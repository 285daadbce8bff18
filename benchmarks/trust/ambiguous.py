"""Explicit edits without one place: their quoted text stands in two or more, or nowhere. Nobody may choose one.

    cut      the edit quotes one or two lines about a real change that stand elsewhere in the file, too
    doubled  the definition about a real change stands twice in the file, the second time under another name
    missing  one token of the line that the edit quotes is another, so that it stands nowhere

They are sent through all doors as a request that says nothing of who decides. The answer has to be a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks import rendering
from benchmarks.cases import Case
from benchmarks.trust.corruptions import RightText, altered
from benchmarks.trust.doors import DOORS, Doors
from editor.definitions import Symbol
from editor.grammars import find_language
from editor.syntax import survey
from editor.types import FormatName

NUM_EDITS = 120
_FORMATS: tuple[FormatName, ...] = ("search_replace", "replace", "udiff", "v4a")
_REACH = 12
_MAX_DOUBLED = 80


@dataclass(frozen=True, slots=True)
class Sending:
    """One ambiguous edit through one door: whether the file came out changed, and how often the model was asked."""

    id: str
    format: str
    style: str
    door: str
    guessed: bool
    model_calls: int
    crashed: str = ""


def send_all(cases: Sequence[Case]) -> Iterator[Sending]:
    """Send each case through each door."""
    doors = Doors()
    try:
        for case in cases:
            for door in DOORS:
                before = doors.model.num_calls
                crashed, after = "", None
                try:
                    after = doors.ways[door](case)
                except Exception as fault:  # noqa: BLE001 (whatever it is, it is a fault of ours)
                    crashed = repr(fault)
                guessed = after is not None and after != case.original.encode()
                asked = doors.model.num_calls - before
                yield Sending(case.id, case.format, case.style, door, guessed, asked, crashed)
    finally:
        doors.close()


def ambiguous_edits(cases: Sequence[Case], num_edits: int, seed: int) -> list[Case]:
    """Make edits without one place of right results, one style after the other, each explicit format in turn."""
    rng = Random(f"ambiguous\0{seed}")
    found = list(cases)
    rng.shuffle(found)
    made: list[Case] = []
    for case in found:
        if len(made) >= num_edits:
            break
        right = RightText(case)
        parts = _STYLES[len(made) % len(_STYLES)](right, rng)
        format_name = _FORMATS[len(made) // len(_STYLES) % len(_FORMATS)]
        if parts is not None and "\r" not in case.original:
            made.append(_written(case, parts, format_name))
    return made


@dataclass(frozen=True, slots=True)
class _Parts:
    """A file, lines that stand in it more than once, and what an edit would put in their place."""

    style: str
    original: str
    before: tuple[str, ...]
    after: tuple[str, ...]


def _cut(right: RightText, rng: Random) -> _Parts | None:
    """Quote one or two lines near a change that stand twice, and alter them."""
    near = {at for span in right.spans for at in range(span.a_start - _REACH, span.a_end + _REACH)}
    windows = [
        right.a[at : at + size]
        for at in sorted(near)
        for size in (1, 2)
        if 0 <= at <= len(right.a) - size and all(map(str.strip, right.a[at : at + size]))
    ]
    windows = [window for window in windows if any(char.isalnum() for line in window for char in line)]
    windows = [window for window in windows if rendering.count(right.a, window) > 1]
    if not windows:
        return None
    before = tuple(rng.choice(windows))
    return _Parts("cut", right.source.text, before, _changed(before, rng))


def _doubled(right: RightText, rng: Random) -> _Parts | None:
    """Let the definition about a change stand again under another name, and quote a line of its body."""
    symbols = found.symbols if (found := survey(right.source.text, find_language(right.case.path))) else ()
    around = [
        symbol
        for span in right.spans
        for symbol in symbols
        if symbol.kind in ("function", "method")
        and symbol.first_line <= span.a_start < symbol.end_line <= symbol.first_line + _MAX_DOUBLED
    ]
    bodies = [(symbol, at) for symbol in around for at in _body(symbol, right.a)]
    if not bodies:
        return None
    symbol, at = rng.choice(bodies)
    own = right.a[symbol.first_line : symbol.end_line]
    name_at = symbol.name_line - symbol.first_line
    twin = [
        *own[:name_at],
        own[name_at].replace(symbol.simple_name, f"{symbol.simple_name}_again", 1),
        *own[name_at + 1 :],
    ]
    if twin == own:
        return None
    lines = [*right.a[: symbol.end_line], "", *twin, *right.a[symbol.end_line :]]
    before = (right.a[at],)
    return _Parts("doubled", "\n".join(lines), before, _changed(before, rng))


def _missing(right: RightText, rng: Random) -> _Parts | None:
    """Quote a line near a change with another token."""
    near = {at for span in right.spans for at in range(span.a_start - _REACH, span.a_end + _REACH)}
    found = [at for at in sorted(near) if 0 <= at < len(right.a) and any(map(str.isalnum, right.a[at]))]
    if not found:
        return None
    line = altered(right.a[rng.choice(found)], right, rng)
    if line.strip() in right.source.text:
        return None
    return _Parts("missing", right.source.text, (line,), _changed((line,), rng))


def _body(symbol: Symbol, lines: Sequence[str]) -> Iterator[int]:
    """Yield the lines of a definition below its head that hold a word."""
    start = max(symbol.name_line + 1, symbol.body_line or 0)
    for at in range(start, symbol.end_line):
        if any(char.isalnum() for char in lines[at]):
            yield at


def _changed(before: Sequence[str], rng: Random) -> tuple[str, ...]:
    """Return the lines with one more, or with another last one."""
    indent = before[-1][: len(before[-1]) - len(before[-1].lstrip())]
    new = f"{indent}ambiguous_{rng.randrange(1000)}()"
    return (*before, new) if rng.random() < 0.5 else (*before[:-1], new)


def _written(case: Case, parts: _Parts, format_name: FormatName) -> Case:
    old, new = ("".join(line + "\n" for line in lines) for lines in (parts.before, parts.after))
    kept = 0
    while kept < min(len(parts.before), len(parts.after)) and parts.before[kept] == parts.after[kept]:
        kept += 1
    hunk = [" " + line for line in parts.before[:kept]]
    hunk += ["-" + line for line in parts.before[kept:]] + ["+" + line for line in parts.after[kept:]]
    edits = {
        "search_replace": rendering.search_replace_blocks([(old, new)]),
        "replace": rendering.exact_replacement(old, new),
        "udiff": "\n".join([f"--- a/{case.path}", f"+++ b/{case.path}", "@@ @@", *hunk, ""]),
        "v4a": "\n".join(["*** Begin Patch", f"*** Update File: {case.path}", "@@", *hunk, "*** End Patch", ""]),
    }
    return replace(
        case,
        format=format_name,
        style=parts.style,
        original=parts.original,
        edit=edits[format_name],
        expected=parts.original,
        expects="refusal",
        instruction="",
    )


_STYLES = (_cut, _doubled, _missing)
