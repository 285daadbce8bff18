"""The matching ladder: where in a file a run of lines stands, strictest rung first, every place counted.

    exact            the lines are equal
    trailing_space   they are equal but for spaces, tabs and carriage returns at line ends
    reindent         they are equal but for one indentation added to, or taken from, all lines that are not blank

The first rung that finds anything decides. More than one place on it is an ambiguity, which no looser rung can mend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from editor.types import Rung

_BLANKS = " \t\r"


@dataclass(frozen=True, slots=True)
class Shift:
    """What the file's indentation has more (`added`) or less (`removed`) than that of the lines looked for."""

    added: str = ""
    removed: str = ""

    def apply(self, line: str) -> str | None:
        """Return a line moved to the file's indentation; None if it is not indented enough to be moved."""
        if not line.strip():
            return line
        return self.added + line[len(self.removed) :] if line.startswith(self.removed) else None


@dataclass(frozen=True, slots=True)
class Places:
    """All places of one rung: `starts` are line indices; `shifts` belong to them one by one."""

    rung: Rung
    starts: tuple[int, ...]
    shifts: tuple[Shift, ...]


def find(lines: Sequence[str], wanted: Sequence[str]) -> Places | None:
    """Return the places of the strictest rung that finds `wanted` in `lines`; None if no rung does.

    `wanted` must hold a line that is not blank: blank lines alone stand everywhere.
    """
    starts = _equal_starts(lines, wanted)
    if starts:
        return Places("exact", starts, (Shift(),) * len(starts))
    starts = _equal_starts([rstripped(line) for line in lines], [rstripped(line) for line in wanted])
    if starts:
        return Places("trailing_space", starts, (Shift(),) * len(starts))
    return _reindented(lines, wanted)


def rstripped(line: str) -> str:
    """Return a line without the blanks at its end that the second rung forgives; NBSP and form feed stay."""
    return line.rstrip(_BLANKS)


def _equal_starts(lines: Sequence[str], wanted: Sequence[str]) -> tuple[int, ...]:
    return _starts(lines, wanted, lambda line: line)


def _starts(lines: Sequence[str], wanted: Sequence[str], key: Callable[[str], str]) -> tuple[int, ...]:
    """Return where `wanted` stands, both taken through `key`. Only places of its first real line are looked at."""
    keys = [key(line) for line in lines]
    sought = [key(line) for line in wanted]
    pivot = next(at for at, line in enumerate(sought) if line.strip())
    last = len(keys) - len(sought)
    candidates = (at - pivot for at, line in enumerate(keys) if line == sought[pivot])
    return tuple(start for start in candidates if 0 <= start <= last and keys[start : start + len(sought)] == sought)


def _reindented(lines: Sequence[str], wanted: Sequence[str]) -> Places | None:
    found = [
        (start, shift)
        for start in _starts(lines, wanted, lambda line: line.strip(_BLANKS))
        if (shift := _uniform_shift(lines[start : start + len(wanted)], wanted)) is not None
    ]
    if not found:
        return None
    return Places("reindent", tuple(start for start, _ in found), tuple(shift for _, shift in found))


def _uniform_shift(found: Sequence[str], wanted: Sequence[str]) -> Shift | None:
    """Return the one shift that leads from `wanted` to `found` on every line that is not blank."""
    shift: Shift | None = None
    for line, sought in zip(found, wanted, strict=True):
        if not sought.strip(_BLANKS):
            continue
        have, had = indent(line), indent(sought)
        if have.endswith(had):
            one = Shift(added=have[: len(have) - len(had)])
        elif had.endswith(have):
            one = Shift(removed=had[: len(had) - len(have)])
        else:
            return None
        if shift is not None and one != shift:
            return None
        shift = one
    return shift


def indent(line: str) -> str:
    """Return the spaces and tabs that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t"))]
