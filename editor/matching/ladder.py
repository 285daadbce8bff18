"""The matching ladder: where in a file a run of lines stands, strictest rung first, every place counted.

    exact            the lines are equal
    trailing_space   they are equal but for spaces, tabs and carriage returns at line ends
    reindent         they are equal but for one mapping of indentations (`indentation.py`), if there are words
    folded           they are equal but for that, and for characters that look alike (`folding.py`)

The first rung that finds anything decides. More than one place on it is an ambiguity, which no looser rung can mend.
The rungs `elided` (`editor/matching/eliding.py`) and `fuzzy` (`editor/matching/fuzzy.py`) are built on these four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from editor.errors import TooMuchWorkError
from editor.matching.folding import fold
from editor.matching.indentation import Mapping, Shift, indent, mapping
from editor.matching.index import LineIndex, exact, folded, rstripped, stripped
from editor.types import Rung

MAX_LINES_MAPPED = 1_000_000
"""The lines whose indentation is compared at all places of one block."""

__all__ = ["LineIndex", "Places", "Shift", "find", "indent", "rstripped"]


@dataclass(frozen=True, slots=True)
class Places:
    """All places of one rung: `starts` are line indices; `shifts` belong to them one by one."""

    rung: Rung
    starts: tuple[int, ...]
    shifts: tuple[Mapping, ...]


def find(lines: Sequence[str] | LineIndex, wanted: Sequence[str]) -> Places | None:
    """Return the places of the strictest rung that finds `wanted` in `lines`; None if no rung does.

    `wanted` must hold a line that is not blank: blank lines alone stand everywhere. Whoever looks for many runs of
    lines in one text hands in an index of it.
    """
    index = lines if isinstance(lines, LineIndex) else LineIndex(lines)
    starts = index.by(exact).starts(wanted)
    if starts:
        return Places("exact", starts, (Shift(),) * len(starts))
    starts = index.by(rstripped).starts([rstripped(line) for line in wanted])
    if starts:
        return Places("trailing_space", starts, (Shift(),) * len(starts))
    if not any(char.isalnum() for line in wanted for char in line):
        # Brackets and quotes at any indentation stand in a file by chance.
        return None
    starts = index.by(stripped).starts([stripped(line) for line in wanted])
    reindented = _mapped("reindent", starts, index.lines, wanted)
    if reindented is not None or (index.is_ascii and all(map(str.isascii, wanted))):
        return reindented
    starts = index.by(folded).starts([folded(line) for line in wanted])
    return _mapped("folded", starts, index.folded_lines, [fold(line) for line in wanted]) if starts else None


def _mapped(rung: Rung, starts: Sequence[int], lines: Sequence[str], wanted: Sequence[str]) -> Places | None:
    size = len(wanted)
    if len(starts) > 1 and len(starts) * size > MAX_LINES_MAPPED:
        raise TooMuchWorkError(f"{size} lines that stand in {len(starts)} places, but at another indentation")
    found = [(at, one) for at in starts if (one := mapping(lines[at : at + size], wanted)) is not None]
    return _places(rung, found)


def _places(rung: Rung, found: Sequence[tuple[int, Mapping]]) -> Places | None:
    return Places(rung, tuple(at for at, _ in found), tuple(one for _, one in found)) if found else None
