"""The lines of a lazy snippet as items: shown lines, markers, and remarks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import Literal

from editor.attribution.statements import COMMENT, find_name
from editor.formats.markup import is_fence
from editor.types import Sketch

Kind = Literal["line", "marker", "remark", "maybe_marker"]
"""A `remark` is no line of the file; a `maybe_marker` is a comment that may be text or stand for lines left out."""

_TAB = 4
_FILE_NAME = re.compile(r"[\s/*#<!;-]*(?:file:?\s*)?[`'\"]?[\w./\\@-]*\w\.\w{1,6}[`'\"]?[\s*/>:-]*", re.I)
_SAYS_REMOVED = re.compile(r"\W*(removed|deleted)\b", re.I)
_BARE_ELISION = re.compile(r"[\[(<]?\s*(?:\.{3}|…).*")
_REMOVED = re.compile(
    r"\W*(removed|deleted|dropped|gone)\b.*|\W*(remove|delete|drop)\s*:.*|"
    r".{2,90}\b(is |are |was |has been |have been )?(removed|gone|deleted|no longer needed)\b.{0,60}",
    re.I,
)
_ELISION = re.compile(
    r"\.{3}|…|\b(exist(s|ing)?|rest|unchanged|same|remain\w*|keep|previous|as before|omitted|elided|snip\w*|"
    r"no changes?|as is|stays?)\b",
    re.I,
)
_CONTINUING = ("else", "elif", "except", "finally", "catch", "rescue", "ensure", "</", "/>", ">")
_MAX_REMARK = 140
_HEADING = re.compile(r"(#{1,6})\s")
_SECTION = re.compile(r"\[\[?\s*([^\[\]]+?)\s*\]?\]\s*(?:[#;].*)?")
_ELIDED_PART = re.compile(r"(?<=[(\[{<,])\s*(?:\.\.\.|…)\s*(?=[)\]}>,])")


@dataclass(frozen=True, slots=True)
class SnippetItem:
    """One line of a snippet that is not blank. `key` is its text without indentation, `width` its indentation.

    `blanks` are the blank lines above it. `elided` matches the file's line where the snippet writes `(...)` for
    parameters. `parent` is the index of the shown line that opens the block that holds this one, -1 for none.
    """

    kind: Kind
    line: str
    key: str
    width: int
    blanks: int = 0
    elided: re.Pattern[str] | None = None
    parent: int = -1
    hunk: int = 0


def get_trailing_space(text: str) -> str:
    """Return the white space at the end of a text."""
    return text[len(text.rstrip()) :]


def measure_indent(line: str) -> int:
    """Return the columns of a line's indentation, a tab as four."""
    return len(line[: len(line) - len(line.lstrip())].expandtabs(_TAB))


def is_moved_alike(depths: Set[tuple[int, int]], sent: int, stands: int) -> bool:
    """Return whether a line that was sent at one column may be at another.

    `depths` are the columns of other lines of its block, as sent and in the file: the line moves as far as one of them,
    or the whole block has another unit of indentation.
    """
    if any(stands - sent == other - quoted for quoted, other in depths):
        return True
    pairs = sorted({*depths, (0, 0)})
    ratios = {(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(pairs) if b[0] != a[0]}
    quoted, other = pairs[0]
    return len(ratios) == 1 and stands == other + (sent - quoted) * ratios.pop()


def find_section(line: str, language: str | None) -> str | None:
    """Return the section that a line opens, in TOML and in files without a grammar (INI), else None."""
    found = _SECTION.fullmatch(line) if language in ("toml", None) else None
    return found[1] if found else None


def measure_level(line: str, language: str | None) -> int:
    """Return the depth of a line: its indentation, or a negative number for a section's head (TOML, INI, Markdown)."""
    if find_section(line, language) is not None:
        return -1
    heading = _HEADING.match(line) if language == "markdown" else None
    return len(heading[1]) - 7 if heading else measure_indent(line)


def read_items(
    sketch: Sketch, places: Mapping[str, Sequence[int]], language: str | None
) -> tuple[list[SnippetItem], list[str]]:
    """Return the items of a snippet in the order of the file, and its prose and remarks.

    `places` are the rows of each line of the file, by its text without indentation.
    """
    file_keys = places.keys()
    texts: list[str] = []
    hunks: list[list[SnippetItem]] = [[]]
    is_fenced = any(_is_foreign_fence(line, file_keys) for block in sketch.blocks for line in block)
    inside = not is_fenced
    fences = sketch.fences or (0,) * len(sketch.blocks)
    has_fences = fences[0] != fences[-1]
    for number, block in enumerate(sketch.blocks):
        if number and fences[number] != fences[number - 1]:
            hunks.append([])
        elif number or (sketch.opens_elided and not has_fences):
            hunks[-1].append(_build_marker(sketch, number))
        blanks = 0
        for line in block:
            if is_fenced and _is_foreign_fence(line, file_keys):
                inside = not inside
                hunks.append([])
            elif not line.strip():
                blanks += 1
                continue
            elif inside:
                hunks[-1].append(_read_item(line, blanks, file_keys, hunks[-1], language))
            else:
                texts.append(line)
            blanks = 0
    if sketch.closes_elided and not has_fences:
        hunks[-1].append(_build_marker(sketch, len(sketch.blocks)))
    hunks = _sort_by_file([hunk for hunk in hunks if hunk], places)
    items: list[SnippetItem] = []
    for number, hunk in enumerate(hunks):
        if number or has_fences:
            items.append(SnippetItem("marker", "", "", -1, hunk=number))
        items += (replace(item, hunk=number) for item in _settle_comments(hunk, file_keys))
    if has_fences:
        items.append(SnippetItem("marker", "", "", -1, hunk=len(hunks) - 1))
    texts += (item.line for item in items if item.kind == "remark")
    return _add_parents(items, language), texts


def _build_marker(sketch: Sketch, number: int) -> SnippetItem:
    gap = number - (0 if sketch.opens_elided else 1)
    indents = sketch.marker_indents[gap] if gap < len(sketch.marker_indents) else ()
    return SnippetItem("marker", "", "", measure_indent(indents[0] + ".") if indents else -1)


def _is_foreign_fence(line: str, file_keys: Set[str]) -> bool:
    return is_fence(line) and line.strip() not in file_keys


def _read_item(
    line: str, blanks: int, file_keys: Set[str], above: Sequence[SnippetItem], language: str | None
) -> SnippetItem:
    key = line.strip()
    kind: Kind = "line"
    if key in ("...", "…") or (key not in file_keys and _BARE_ELISION.fullmatch(key) and _ELISION.search(key[4:])):
        kind = "maybe_marker"
    elif key not in file_keys and COMMENT.match(line) and len(key) <= _MAX_REMARK:
        text = key.strip("/*#<!->;% {}")
        if _REMOVED.fullmatch(text) or (not above and _FILE_NAME.fullmatch(key)):
            kind = "remark"
        elif _ELISION.search(text):
            kind = "maybe_marker"
    elided = None
    if key not in file_keys and _ELIDED_PART.search(key):
        parts = [re.escape(re.sub(r"\s+", "", part)) for part in _ELIDED_PART.split(key)]
        elided = re.compile(".*?".join(parts) + "[{:]?")
    return SnippetItem(kind, line, key, measure_level(line, language), blanks, elided)


def _sort_by_file(hunks: list[list[SnippetItem]], places: Mapping[str, Sequence[int]]) -> list[list[SnippetItem]]:
    """Return the hunks of separate fences by the order of their unique lines in the file."""
    found = [_find_place(hunk, places) for hunk in hunks]
    above = -1
    for at, place in enumerate(found):
        above = found[at] = above if place is None else place
    order = sorted(range(len(hunks)), key=lambda at: (found[at] or 0, at))
    return [hunks[at] for at in order]


def _settle_comments(hunk: Sequence[SnippetItem], file_keys: Set[str]) -> Iterator[SnippetItem]:
    """Yield the items with unclear comments settled: a comment next to new comments is a line, whatever it says.

    A new comment that is all the snippet shows of a body whose head is in the file may stand for that body.
    """
    for at, item in enumerate(hunk):
        above, below = (hunk[other] if 0 <= other < len(hunk) else None for other in (at - 1, at + 1))
        among = any(
            one is not None
            and one.kind == "line"
            and one.key not in file_keys
            and COMMENT.match(one.line)
            and one.width == item.width
            for one in (above, below)
        )
        unclear = item.kind == "remark" and not _SAYS_REMOVED.match(item.key)
        unclear |= item.kind == "maybe_marker" and "..." not in item.key and "…" not in item.key
        if unclear and among:
            yield replace(item, kind="line")
        elif item.kind == "line" and _is_whole_body(item, above, below, file_keys):
            yield replace(item, kind="maybe_marker")
        else:
            yield item


def _is_whole_body(
    item: SnippetItem, above: SnippetItem | None, below: SnippetItem | None, file_keys: Set[str]
) -> bool:
    """Return whether an item is a new comment, alone between the head and the end of a body of the file."""
    if above is None or below is None or item.key in file_keys or not COMMENT.match(item.line):
        return False
    is_head = above.kind == "line" and above.key in file_keys and above.key.endswith(("{", ":"))
    return is_head and above.width < item.width and below.kind == "line" and below.width < item.width


def _find_place(hunk: Sequence[SnippetItem], places: Mapping[str, Sequence[int]]) -> int | None:
    unique = [places[item.key][0] for item in hunk if len(item.key) > 4 and len(places.get(item.key, ())) == 1]
    return median_low(unique) if unique else None


def _add_parents(items: Sequence[SnippetItem], language: str | None) -> list[SnippetItem]:
    """Return the items, each with its parent: the line above it that is less indented and opens a block.

    A marker ends the blocks of lines that are as much or more indented.
    """
    made: list[SnippetItem] = []
    around: list[int] = []
    marked = -1
    for at, item in enumerate(items):
        if item.kind in ("marker", "maybe_marker"):
            marked = at
        if at and item.hunk != items[at - 1].hunk:
            around = []
        if item.kind == "marker":
            around = [one for one in around if items[one].width < item.width]
        if item.kind != "line":
            made.append(item)
            continue
        continues = _continues(item.key)
        around = [one for one in around if items[one].width < item.width + continues]
        parents = [one for one in around if items[one].width < item.width]
        is_section = language == "markdown" and item.width < 0
        if parents and marked > parents[-1] and items[marked].width != item.width and not is_section:
            # The marker may hide another opening line between the two; no section is shown below a foreign one.
            parents = [one for one in parents if marked < one]
        made.append(replace(item, parent=parents[-1] if parents else -1))
        if not continues and is_opener(item.key, language):
            around.append(at)
    return made


def is_opener(key: str, language: str | None) -> bool:
    """Return whether a line seems to open a block or a section."""
    if (language == "markdown" and key[0] == "#") or find_section(key, language) is not None:
        return True
    if key.endswith(("(", "[")) or COMMENT.match(key):
        return False
    return key.endswith(("{", ":", ">", "=>", "do", "then")) or (
        not key.endswith(("=", ",", "<")) and bool(find_name(key))
    )


def _continues(key: str) -> bool:
    """Return whether a line continues the block above at the same depth: `} else {`, `):`."""
    return key[0] in ")]}" or key.startswith(_CONTINUING)


def list_ancestor_keys(lines: Sequence[tuple[str, int]], language: str | None) -> Iterator[frozenset[str]]:
    """Yield for each line (its key and width) the keys of the lines that enclose it, by indentation.

    Lines below `} else {` are still inside of the `if`.
    """
    around: list[tuple[int, frozenset[str]]] = []
    for key, width in lines:
        if language != "markdown" and (key[0] == "#" or COMMENT.match(key)):
            yield _find_innermost(around, width)
            continue
        continues = _continues(key)
        while around and (around[-1][0] > width or (around[-1][0] == width and not continues)):
            around.pop()
        inside = _find_innermost(around, width)
        yield inside
        if not continues or not around:
            around.append((width, inside | {key}))


def _find_innermost(around: Sequence[tuple[int, frozenset[str]]], width: int) -> frozenset[str]:
    for at, keys in reversed(around):
        if at < width:
            return keys
    return frozenset()
