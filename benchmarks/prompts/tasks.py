"""The edits on which prompt forms are compared: recorded lazy snippets, and snippets made from real edits.

recorded   the lazy cases, which are small files, compared modulo blanks (they are not exact in these)
small      the definition at top level that holds all changes of a real edit, as a file of its own, or a small file
region     a real file whose edit touches one region of it, which is given to the model with the outline of the rest

A made snippet is in one style, which goes round from pair to pair; of the versions of one file, two at most are taken.
The files are split by their names into a half to choose by and a half that is held out, so that a choice can be checked
on edits that it was not made by.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cases import Case, load
from benchmarks.snippets import STYLES, Pair, make_snippet, pairs
from editor.errors import EditSyntaxError
from editor.formats import parse
from editor.grammars import find_language
from editor.merge import merge
from editor.scope import Region, find_regions
from editor.syntax import survey
from editor.types import Merged

KINDS = ("recorded", "small", "region")
MIN_LINES, MAX_LINES = 12, 45
MAX_REGION_LINES = 60
VERSIONS = 2
"""Edits of one file: recordings hold many versions of some."""


@dataclass(frozen=True, slots=True)
class Task:
    """One edit of one file: `right` is the file behind it. The model is given `region`, or all where that is None."""

    id: str
    kind: str
    style: str
    path: str
    file: str
    edit: str
    right: str
    region: Region | None = None
    outline: str = ""
    inexact: bool = False

    @property
    def held_out(self) -> bool:
        """Whether the edit is kept from the choice; the same for all edits of one file."""
        return _drawn(_file_name(self.path, self.id)) % 2 == 1


def tasks(path: Path, kinds: Sequence[str], seed: int) -> list[Task]:
    """Make all tasks of these kinds from the cases at or below `path`."""
    found: list[Task] = []
    real = _varied(pairs(path))
    if "recorded" in kinds:
        found += _recorded(path)
    if "small" in kinds:
        found += _in_turn((small for pair in real if (small := _small(pair)) is not None), "small", seed)
    if "region" in kinds:
        found += filter(None, map(_of_region, _in_turn(real, "region", seed)))
    return found


def _varied(found: Sequence[Pair]) -> list[Pair]:
    """The pairs, some of each file only, in an order that mixes sources."""
    counts: Counter[str] = Counter()
    kept: list[Pair] = []
    for pair in sorted(found, key=lambda pair: _drawn(pair.id)):
        name = _file_name(pair.path, pair.id)
        counts[name] += 1
        if counts[name] <= VERSIONS:
            kept.append(pair)
    return kept


def _file_name(path: str, case_id: str) -> str:
    return path if Path(path).stem not in ("", "x") else case_id


def _drawn(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _recorded(path: Path) -> Iterator[Task]:
    for case in load(path).cases:
        if isinstance(case, Case) and case.format == "lazy" and not case.variety and _is_lazy(case.edit):
            yield Task(
                case.id, "recorded", "recorded", case.path, case.original, case.edit, case.expected, inexact=True
            )


def _is_lazy(edit: str) -> bool:
    try:
        parse(edit, "lazy")
    except EditSyntaxError:
        return False
    return True


def _in_turn(found: Iterable[Pair], kind: str, seed: int) -> Iterator[Task]:
    """Write each pair's edit in the style whose turn it is, or the next one that can say it."""
    turn = seed
    for pair in found:
        for style in (STYLES[(turn + later) % len(STYLES)] for later in range(len(STYLES))):
            edit = make_snippet(pair.before, pair.after, pair.path, style, seed)
            if edit is not None and _is_lazy(edit):
                yield Task(pair.id, kind, style, pair.path, pair.before, edit, pair.after)
                turn += 1
                break


def _small(pair: Pair) -> Pair | None:
    """The pair cut down to the smallest definition at top level that holds the edit; None where that is not small."""
    before, after = pair.before.split("\n"), pair.after.split("\n")
    if MIN_LINES <= len(before) <= MAX_LINES:
        return pair
    seen = survey(pair.before, find_language(pair.path))
    for symbol in seen.symbols if seen is not None else ():
        above, below = before[: symbol.first_line], before[symbol.end_line :]
        num_lines = symbol.end_line - symbol.first_line
        at_top = symbol.depth == 0 and symbol.kind not in ("key", "heading")
        alone = after[: len(above)] == above and (not below or after[-len(below) :] == below)
        if at_top and alone and MIN_LINES <= num_lines <= MAX_LINES and len(after) > len(above) + len(below):
            new = after[len(above) : len(after) - len(below)]
            return Pair(pair.id, pair.path, _text(before[symbol.first_line : symbol.end_line]), _text(new))
    return None


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def _of_region(task: Task) -> Task | None:
    """The task with the one region that the rules find for it; None where they find several or the whole file."""
    edit, language = parse(task.edit, "lazy"), find_language(task.path)
    by_rule = merge(task.file, edit, language)
    scope = find_regions(task.file, edit, by_rule, language)
    if scope.whole or len(scope.regions) != 1 or scope.regions[0].num_lines > MAX_REGION_LINES:
        return None
    if isinstance(by_rule, Merged) and by_rule.text != task.right:
        return None
    return replace(task, region=scope.regions[0], outline=scope.outline)
