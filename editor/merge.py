r"""Merge an edit into a text by rule alone: certain, or not at all.

`Merged` is only given where one place fits at every change and no line of the file is lost that the edit does not name.
Everything else is `Unresolved`, with the reason for whoever sent the edit; a model may then decide.
"""

from __future__ import annotations

from dataclasses import replace

from editor.replacing import merge_replacements
from editor.sketching import merge_sketch
from editor.substituting import merge_substitutions
from editor.types import Merged, MergeOutcome, ParsedEdit, Sketch, Substitutions


def merge(original: str, edit: ParsedEdit) -> MergeOutcome:
    r"""Apply an edit to a text with "\n" lines. The final newline stays as it was; a created file gets one."""
    if isinstance(edit.changes, Substitutions):
        return merge_substitutions(original, edit.changes)
    lines = original.split("\n")
    final_newline = lines[-1] == ""
    if final_newline:
        lines.pop()
    if isinstance(edit.changes, Sketch):
        outcome = merge_sketch(lines, edit.changes)
    else:
        outcome = merge_replacements(lines, edit.changes)
    if isinstance(outcome, Merged) and not final_newline:
        return replace(outcome, text=outcome.text.removesuffix("\n"))
    return outcome
