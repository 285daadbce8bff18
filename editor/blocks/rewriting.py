"""A whole file put in place of the old one: certain where it was declared so, and leaves nothing out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from editor.formats.placeholders import placeholder_lines
from editor.types import AlreadyApplied, Merged, MergeOutcome, Sketch, Unresolved


def merge_whole(lines: Sequence[str], sketch: Sketch) -> MergeOutcome:
    """Return the new lines, every one with an ending; refused if they hold placeholders that the file does not."""
    (block,) = sketch.blocks
    stands = Counter(lines[at].strip() for at in placeholder_lines(lines))
    sent = [block[at].strip() for at in sorted(placeholder_lines(block))]
    new = next((line for line in sent if Counter(sent)[line] > stands[line]), None)
    if new is not None:
        return Unresolved(
            "open_intent",
            f"The edit was declared to be the whole file, but leaves lines out: it holds the placeholder '{new}'.",
            suggestion="Send all lines of the file, or send the edit as a lazy snippet.",
        )
    if list(block) == list(lines):
        return AlreadyApplied("The file already is what the edit says.")
    return Merged("".join(line + "\n" for line in block), "exact")
