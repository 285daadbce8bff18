"""Deletions that a snippet hides: it could as well mean that the lines stay, and a reader is right by luck only."""

from __future__ import annotations

import re

from benchmarks.cases import Case
from benchmarks.rendering import changes
from editor.placeholders import holds_placeholder

_REMOVAL = re.compile(
    r"\b(remov|delet|drop|strip|eliminat|without|no longer|get rid|replac|instead|renam|mov|inlin|merg|simplif|unus)",
    re.IGNORECASE,
)


def hides_deletion(case: Case) -> bool:
    """Tell whether a snippet without one marker leaves out lines that are to go, and nothing says so.

    Without markers, a hole between two lines of the snippet is an omission as well as a deletion. Lines that others
    replace are no holes; a word of removal in the instruction, or in the prose about fences, says enough.
    """
    if case.format != "lazy" or case.expects != "text":
        return False
    if _REMOVAL.search(f"{case.instruction}\n{_prose(case.edit)}") or any(
        map(holds_placeholder, case.edit.split("\n"))
    ):
        return False
    old, new = case.original.split("\n"), case.expected.split("\n")
    shown = {line.strip() for line in case.edit.split("\n")}
    for span in changes(old, new):
        gone = [line for line in old[span.a_start : span.a_end] if line.strip()]
        is_hole = not any(line.strip() for line in new[span.b_start : span.b_end])
        if gone and is_hole and not any(line.strip() in shown for line in gone):
            return True
    return False


def _prose(edit: str) -> str:
    parts = re.split(r"^\s*```.*$", edit, flags=re.MULTILINE)
    return "\n".join(parts[::2]) if len(parts) > 1 else ""
