"""How the indentation of a file differs from that of an edit, found on lines that both have, applied to new ones.

Either one run of blanks stands more (or less) before every line, or the one side has tabs where the other has a fixed
number of spaces. Nothing else counts as the same indentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from editor.matching.folding import BLANKS

_TABS_THEN_SPACES = re.compile(r"(\t*)( *)")
_UNITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class Shift:
    """What the file's indentation has more (`added`) or less (`removed`) than that of the lines looked for.

    `mixes` says that the file itself has tabs and spaces in one indentation here.
    """

    added: str = ""
    removed: str = ""
    mixes: bool = False

    def apply(self, line: str) -> str | None:
        """Return a line moved to the file's indentation; None if it cannot be moved, or would mix tabs and spaces."""
        if not line.strip(BLANKS):
            return line
        if not line.startswith(self.removed):
            return None
        rest = line[len(self.removed) :]
        return None if not self.mixes and _mixed(self.added, indent(rest)) else self.added + rest


@dataclass(frozen=True, slots=True)
class Retab:
    """One tab of the file for every `unit` spaces of the edit (`to_tabs`), or the other way, `depth` levels deeper."""

    unit: int
    depth: int
    to_tabs: bool

    def apply(self, line: str) -> str | None:
        """Return a line with the file's kind of indentation; None if its own is neither all spaces nor tabs first."""
        if not line.strip(BLANKS):
            return line
        own = indent(line)
        levels = _levels(own, self.unit, spaces=self.to_tabs)
        if levels is None or levels[0] + self.depth < 0:
            return None
        level, rest = levels[0] + self.depth, " " * levels[1]
        return ("\t" * level if self.to_tabs else " " * (self.unit * level)) + rest + line[len(own) :]


Mapping = Shift | Retab


def mapping(found: Sequence[str], wanted: Sequence[str]) -> Mapping | None:
    """Return the one mapping from `wanted` to `found` that holds on every line that is not blank, or None."""
    pairs = [(indent(line), indent(sought)) for line, sought in zip(found, wanted, strict=True) if sought.strip(BLANKS)]
    return (_shift(pairs) or _retab(pairs)) if pairs else None


def indent(line: str) -> str:
    """Return the spaces and tabs that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t"))]


def _shift(pairs: Sequence[tuple[str, str]]) -> Shift | None:
    """Return the shift of all pairs (indentation of the file, of the edit)."""
    have, had = pairs[0]
    if have.endswith(had):
        added, removed = have[: len(have) - len(had)], ""
    elif had.endswith(have):
        added, removed = "", had[: len(had) - len(have)]
    else:
        return None
    if any(have != added + had[len(removed) :] or not had.startswith(removed) for have, had in pairs):
        return None
    return Shift(added, removed, any(" " in have and "\t" in have for have, _ in pairs))


def _retab(pairs: Sequence[tuple[str, str]]) -> Retab | None:
    to_tabs = any("\t" in have for have, _ in pairs)
    if to_tabs == any("\t" in had for _, had in pairs):
        return None
    found = [one for unit in _UNITS for one in _retabs_by(unit, pairs, to_tabs)]
    level = [one for one in found if one.depth == 0]
    return next(iter(level), None) if level or len(found) != 1 else found[0]


def _retabs_by(unit: int, pairs: Sequence[tuple[str, str]], to_tabs: bool) -> Iterator[Retab]:
    depths: set[int] = set()
    for have, had in pairs:
        in_file = _levels(have, unit, spaces=not to_tabs)
        in_edit = _levels(had, unit, spaces=to_tabs)
        if in_file is None or in_edit is None or in_file[1] != in_edit[1]:
            return
        depths.add(in_file[0] - in_edit[0])
    if len(depths) == 1:
        yield Retab(unit, depths.pop(), to_tabs)


def _levels(own: str, unit: int, *, spaces: bool) -> tuple[int, int] | None:
    """Return (levels, spaces left over) of an indentation of spaces, or of tabs with a few spaces behind them."""
    if spaces:
        return None if "\t" in own else divmod(len(own), unit)
    parts = _TABS_THEN_SPACES.fullmatch(own)
    return (len(parts[1]), len(parts[2])) if parts is not None and len(parts[2]) < unit else None


def _mixed(outer: str, inner: str) -> bool:
    # One space behind tabs is the ` *` of a block comment.
    return ("\t" in outer and inner.startswith("  ")) or (" " in outer and "\t" in inner)
