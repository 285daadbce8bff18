"""Exact string replacement put into a text: every `old` at its one place, or everywhere where that was asked for."""

from __future__ import annotations

from editor.types import AlreadyApplied, Merged, MergeOutcome, Substitutions, Unresolved


def merge_substitutions(text: str, changes: Substitutions) -> MergeOutcome:
    """Return the text with all substitutions made in turn, or why there is none."""
    merged = text
    for item in changes.items:
        count = merged.count(item.old)
        if count == 0:
            return Unresolved("not_found", "The old text does not stand in the file.")
        if count > 1 and not item.replace_all:
            return Unresolved("ambiguous", f"The old text stands in {count} places.", count)
        merged = merged.replace(item.old, item.new)
    return Merged(merged, "exact") if merged != text else AlreadyApplied("The new text is the old text.")
