"""Lazy snippets of whole definitions, bound to the file by syntax: same kind, same qualified name, one of each.

Lines that stand in many places (`return result`) leave it open where a block ends; a definition's extent does not. So
a snippet that consists of complete definitions is merged for certain if each is bound and only gains lines, or has
fields changed in place. Whatever would take a line away is left to `editor/reader/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from editor.lazy.edges import DoubtError, check_addition
from editor.lazy.showing import added, can_anchor, in_other_form, with_all_of
from editor.lazy.units import Unit, flat, units_of
from editor.matching.index import LineIndex
from editor.snippets import survey_snippet
from editor.syntax import Survey, survey
from editor.types import Sketch


def bound_lines(lines: list[str], sketch: Sketch, language: str | None) -> list[str] | None:
    """Return the merged lines, None where a part of the snippet is not surely bound."""
    seen = survey("\n".join(lines), language)
    snippet, markers = flat(sketch)
    sent = survey_snippet(["" if at in markers else line for at, line in enumerate(snippet)], language)
    if seen is None or sent is None or seen.error_lines or sent.error_lines:
        return None
    shown = units_of(snippet, sent, markers)
    if not all(unit.is_marker or (unit.kind and not unit.elides) for unit in shown):
        return None  # before the units of a long file are told
    file = units_of(lines, seen)
    places = _places(file, shown, seen)
    if places is None:
        return None
    merged, index = list(lines), LineIndex(lines)
    try:
        for s, f in sorted(places.items(), reverse=True):
            have, unit = file[f], shown[s]
            merged[have.start : have.end] = _grown(index, have, snippet, unit)
    except DoubtError:
        return None
    return merged


def _definition(unit: Unit) -> tuple[str, str]:
    """Return (kind, name) of a definition that the grammar knows; a method counts as a function."""
    return "function" if unit.kind == "method" else unit.kind, unit.name


def _places(file: Sequence[Unit], shown: Sequence[Unit], seen: Survey) -> dict[int, int] | None:
    """Return for every definition of the snippet which of the file it is; None if one is open, or out of order."""
    defined = Counter(symbol.simple_name for symbol in seen.symbols)
    in_file = {_definition(unit): f for f, unit in enumerate(file) if unit.kind}
    places: dict[int, int] = {}
    for s, unit in enumerate(shown):
        if unit.is_marker:
            continue
        wanted = _definition(unit)
        if wanted not in in_file or defined[unit.name] != 1:
            return None
        if unit.width != file[in_file[wanted]].width:
            return None
        places[s] = in_file[wanted]
    ascending = all(f < below for f, below in pairwise(places.values()))
    return places if places and ascending and not any(_hides(file, shown, places)) else None


def _hides(file: Sequence[Unit], shown: Sequence[Unit], places: dict[int, int]) -> Iterator[bool]:
    """Yield whether the file has units where the snippet, without a marker, shows none."""
    first, last = min(places), max(places)
    yield first == 0 and places[first] > 0
    yield last == len(shown) - 1 and places[last] < len(file) - 1
    for (s, f), (next_s, next_f) in pairwise(sorted(places.items())):
        yield next_s == s + 1 and next_f != f + 1


def _grown(index: LineIndex, have: Unit, snippet: Sequence[str], unit: Unit) -> list[str]:
    """Return a definition with the lines that it gains; raises `DoubtError` if it loses one, or gains it twice."""
    hidden, sent = index.lines[have.start : have.end], snippet[unit.start : unit.end]
    merged = with_all_of(hidden, sent)
    if merged is None:
        if not in_other_form(hidden, sent):
            raise DoubtError("open_intent", "A line would be lost.")
        return list(sent)
    gained = added(merged, hidden)
    stands = index.by(str.strip).places
    if any(can_anchor(line) and line.strip() in stands for line in gained):
        raise DoubtError("open_intent", "A line that is gained stands elsewhere: it may be moved.")
    check_addition(gained, index, have.end)
    return merged
