"""Notes in a snippet that say what is taken away, such as `# old_helper removed`: they are no lines of the result."""

from __future__ import annotations

import re
from collections.abc import Sequence

from editor.lazy.edges import NOTE
from editor.lazy.units import Unit

_REMOVES = re.compile(r"\b(?:remov|delet|drop)(?:e|es|ed|ing|ped|ping)?\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")


def without_notes(
    units: Sequence[Unit], snippet: Sequence[str], file: Sequence[str]
) -> tuple[list[Unit], frozenset[str]]:
    """Return the units of a snippet that are no notes, and the words of those that are."""
    shown: list[Unit] = []
    words: set[str] = set()
    for unit in units:
        if _is_note(unit, snippet, file):
            words |= set(_WORD.findall(snippet[unit.start]))
        else:
            shown.append(unit)
    return shown, frozenset(words)


def _is_note(unit: Unit, snippet: Sequence[str], file: Sequence[str]) -> bool:
    """Tell whether a unit is one line that says that something goes; the file has no such line."""
    head = snippet[unit.start] if unit.end == unit.start + 1 and not unit.is_marker else ""
    if not NOTE.match(head) or not _REMOVES.search(head):
        return False
    return head.strip() not in {line.strip() for line in file}
