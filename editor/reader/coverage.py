"""What a snippet and its instruction say about the file: what they show completely, what goes, where new code goes."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict

import numpy as np

from editor.attribution.statements import IMPORT, find_key
from editor.reader.candidates import FileLines, Mask, Snippet, is_comment

_WORD = re.compile(r"\w+")
_MOVE = re.compile(r"\bmov(?:e|es|ed|ing)\b", re.IGNORECASE)
_OPENS = ("{", ":", "do", "then", "(", "[", ">")
_WHOLE_SHARE = 0.6
_MIN_UNIT = 4


def is_whole(file: FileLines, snippet: Snippet) -> bool:
    """Return whether a snippet looks like the whole file: no marker, the same first line, and most of its lines."""
    if not len(file) or any(item.kind != "line" for item in snippet.items):
        return False
    first, other = snippet.items[0].key, file.keys[0]
    if first != other and find_key(first) != find_key(other):
        return False
    return sum(key in snippet.shown for key in file.keys) >= _WHOLE_SHARE * len(file)


def has_lines_in_order(file: FileLines, snippet: Snippet) -> bool:
    """Return whether all shown lines stand in the file in their order: the edit may have been made already."""
    below = 0
    for item in snippet.items:
        if item.kind == "line":
            places = file.places.get(item.key, [])
            at = bisect_left(places, below)
            if at == len(places):
                return False
            below = places[at] + 1
    return True


def find_new_units(file: FileLines, snippet: Snippet) -> dict[int, int]:
    """Return where new blocks without a marker begin and end in a snippet, by their first item.

    A block is new if it is a definition that the file does not have or that is to be moved, or a statement with a body
    whose first line the file does not have.
    """
    known = {name for name in file.names if name} - _find_moved_words(snippet.said)
    found = {}
    for at, name in enumerate(snippet.names):
        item = snippet.items[at]
        if item.kind != "line" or (name in known if name else item.key in file.places or not item.key.endswith(_OPENS)):
            continue
        end = at + 1
        while end < len(snippet) and snippet.items[end].kind != "marker" and _is_inside(snippet, end, at):
            end += 1
        if end - at >= _MIN_UNIT and (end == len(snippet) or snippet.items[end].width <= item.width):
            found[at] = end
    return found


def _find_moved_words(said: str) -> set[str]:
    """Return the words of an instruction that says that something moves; none of any other."""
    return set(_WORD.findall(said)) if _MOVE.search(said) else set()


def _is_inside(snippet: Snippet, at: int, head: int) -> bool:
    """Return whether an item lies in the definition that another begins, or closes it."""
    item, name = snippet.items[at], snippet.names[head]
    if item.kind == "line" and name:
        return name in snippet.owners[at]
    closes = item.key[:1] in ")]}" or item.key == "end"
    return item.width > snippet.items[head].width or (closes and item.width == snippet.items[head].width)


def _find_closed_names(file: FileLines, snippet: Snippet) -> set[str]:
    """Return the names of definitions that the snippet shows without a marker, and that both define only once."""
    counts, stood = Counter(name for name in snippet.names if name), Counter(name for name in file.names if name)
    found = set()
    for at, name in enumerate(snippet.names):
        if not name or counts[name] != 1 or stood[name] != 1:
            continue
        end = at + 1
        while end < len(snippet) and snippet.items[end].kind == "line" and name in snippet.owners[end]:
            end += 1
        is_marked = end < len(snippet) and snippet.items[end].kind != "line"
        deep = is_marked and snippet.items[end].width > snippet.items[at].width
        if end > at + 1 and end < len(snippet) and not deep:
            found.add(name)
    return found


def mask_closed_lines(file: FileLines, snippet: Snippet) -> Mask:
    """Return for each line of a file whether it lies in a definition that the snippet shows without a marker."""
    names = _find_closed_names(file, snippet)
    return np.array([bool(names.intersection(chain)) for chain in file.owners], np.bool_)


def find_last_name(file: FileLines, snippet: Snippet) -> str:
    """Return the name of the definition in which a snippet ends, if it shows lines of it and no marker; else ""."""
    at = len(snippet) - 1
    if at < 1 or snippet.items[at].kind != "line" or not snippet.owners[at]:
        return ""
    name = snippet.owners[at][-1]
    while at and snippet.items[at].kind == "line" and snippet.names[at] != name:
        at -= 1
    is_shown = snippet.names[at] == name and at < len(snippet) - 1
    return name if is_shown and snippet.names.count(name) == 1 and file.names.count(name) == 1 else ""


def find_stale_imports(file: FileLines, snippet: Snippet) -> list[int]:
    """Return the unshown imports of a file of which a new import of the same module in the snippet has all names."""
    new: dict[str | None, set[str]] = defaultdict(set)
    for item in snippet.items:
        if item.kind == "line" and item.key not in file.places and IMPORT.match(item.key):
            new[find_key(item.key)].update(_WORD.findall(item.key))
    unshown = (at for at, key in enumerate(file.keys) if key not in snippet.shown and IMPORT.match(key)) if new else ()
    return [at for at in unshown if set(_WORD.findall(file.keys[at])) <= new.get(find_key(file.keys[at]), set())]


def find_named_places(file: FileLines, snippet: Snippet) -> set[int]:
    """Return the lines of the file above which the instruction puts new code."""
    place = snippet.place
    if not place.says_anything:
        return set()
    ends = {end for _, end, name in file.definitions if place.is_after(name)}
    return ends | {first for first, _, name in file.definitions if place.is_before(name)}


def find_lines_to_remove(file: FileLines, snippet: Snippet) -> frozenset[int]:
    """Return the lines of the file that the snippet does not show and the instruction or a remark removes."""
    removal = snippet.removal
    if not removal.says_anything:
        return frozenset()
    names = {name for name in snippet.names if name}
    found: set[int] = set()
    for first, end, name in file.definitions:
        if name not in names and removal.names_definition(name):
            found.update(range(first, end))
    for at, line in enumerate(file.lines):
        if at in found or file.keys[at] in snippet.shown:
            continue
        if removal.quotes_line(line) or (not is_comment(line) and removal.names_line(line)):
            found.add(at)
    return frozenset(found)
