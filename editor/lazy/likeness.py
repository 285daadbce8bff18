"""How alike a unit of a file and one of a snippet are: by kind and name, by first line, by text."""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz import fuzz, process

from editor.lazy.siblings import TITLE, Siblings
from editor.lazy.units import MARKER

# Of 1: what first lines must have in common if the names differ, and definitions whose names differ.
_MIN_RENAMED = 0.8
_RENAMED = 0.93
_MAX_TEXT = 2_000
_MAX_LINES_COMPARED = 400


def likeness(file: Siblings, f: int, snippet: Siblings, s: int) -> float:
    """Return how alike two units are, in [0, 1]."""
    one, other = file.units[f], snippet.units[s]
    if one.is_marker or other.is_marker or one.continues != other.continues:
        return 0.0
    if file.heads[f] == snippet.heads[s] and file.text(f) == snippet.text(s):
        return 1.0
    heads = fuzz.ratio(file.heads[f], snippet.heads[s]) / 100
    if one.continues:
        return heads
    name, sent_name = file.name(f), snippet.name(s)
    same_name = name != "" and name == sent_name
    if one.kind and other.kind:
        return _likeness_of_definitions(file, f, snippet, s, same_name=same_name)
    if one.kind or other.kind:
        return 0.5 + 0.45 * heads if same_name else 0.0
    if same_name:
        return 0.5 + 0.2 * heads + 0.25 * _text_likeness(file, f, snippet, s)
    both_named = bool(name and sent_name)
    imports = file.is_import(f) or snippet.is_import(s)
    if both_named and (heads < _MIN_RENAMED or imports or (TITLE in name and one.parts)):
        return 0.0
    inner = _text_likeness(file, f, snippet, s)
    return (0.8 if both_named else 0.95) * max(heads if not other.parts else 0.0, inner)


def _likeness_of_definitions(file: Siblings, f: int, snippet: Siblings, s: int, *, same_name: bool) -> float:
    same_kind = file.units[f].kind == snippet.units[s].kind
    if same_name:
        return 0.98 if same_kind else 0.9
    # Definitions with different names are different, if alike: a new test is a copy of its neighbour.
    renamed = same_kind and _text_likeness(file, f, snippet, s) >= _RENAMED
    return 0.6 if renamed else 0.0


def _text_likeness(file: Siblings, f: int, snippet: Siblings, s: int) -> float:
    if snippet.units[s].elides:
        # What a marker leaves out says nothing: the share of the shown lines counts.
        shown = [line for line in snippet.text(s).split("\n") if line != MARKER]
        have = file.text(f).split("\n")
        return sum(_best_line(line, have) for line in shown) / max(1, len(shown))
    return fuzz.ratio(file.text(f)[:_MAX_TEXT], snippet.text(s)[:_MAX_TEXT]) / 100


def _best_line(line: str, have: Sequence[str]) -> float:
    if line in have:
        return 1.0
    if len(have) > _MAX_LINES_COMPARED:
        return 0.0
    found = process.extractOne(line, have, scorer=fuzz.ratio, score_cutoff=60)
    return 0.8 * found[1] / 100 if found else 0.0
