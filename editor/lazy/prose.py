"""What the sentences around a snippet say that its lines do not: that lines go, or that one fence replaces another."""

from __future__ import annotations

import re

from editor.types import ParsedEdit, Unresolved

_GOES = re.compile(
    r"\b(?:remov\w+|delet\w+|drop(?:s|ped)?|renam\w+|mov(?:e|es|ed|ing)|replac\w+|get rid|rid of|goes? away|no longer|"
    r"instead of|swap\w*)\b",
    re.IGNORECASE,
)
# Between the old and the new lines: "with:", "to this:", "After:".
_BECOMES = re.compile(
    r"^\W*(?:with|to|into|by|after|becomes?|new|now|should be)\b.{0,40}:\W*$", re.IGNORECASE | re.MULTILINE
)


def refuse_told(edit: ParsedEdit) -> Unresolved | None:
    """Return why a snippet cannot be merged for certain: the prose around it says more than its lines; else None."""
    told = _GOES.search(edit.prose) or _BECOMES.search(edit.prose)
    if told is None:
        return None
    return Unresolved(
        "open_intent",
        f"The text around the code says more than the code shows ('{told[0].strip()}'): lines may have to go.",
        suggestion="Send SEARCH/REPLACE blocks with the lines that change and those that go.",
    )
