r"""Merge an edit into a text by rule alone: certain, or not at all.

`Merged` is only given where one place fits at every change and no line of the file is lost that the edit does not name.
Everything else is `Unresolved`, with the reason for whoever sent the edit; a model may then decide.
"""

from __future__ import annotations

from dataclasses import replace

from editor.blocks.ranging import merge_ranges
from editor.blocks.replacing import merge_replacements
from editor.blocks.rewriting import merge_whole
from editor.blocks.substituting import merge_substitutions
from editor.lazy.prose import refuse_told
from editor.lazy.sketching import merge_sketch
from editor.patches.hunks import merge_hunks
from editor.stand_ins import refuse_stand_in
from editor.types import Merged, MergeOutcome, ParsedEdit, Sketch, Substitutions, Unresolved


def merge(original: str, edit: ParsedEdit, language: str | None = None) -> MergeOutcome:
    r"""Apply an edit to a text with "\n" lines. The final newline stays as it was; a created file gets one.

    `language` (of `editor.languages`) lets lazy snippets be bound by their definitions; without it by lines alone.
    """
    outcome = _merge(original, edit, language)
    if not isinstance(outcome, Merged):
        return outcome
    refused = refuse_told(outcome, edit) if edit.format == "lazy" else refuse_stand_in(original, outcome.text, edit)
    return refused or outcome


def _merge(original: str, edit: ParsedEdit, language: str | None) -> MergeOutcome:
    if isinstance(edit.changes, Substitutions):
        return merge_substitutions(original, edit.changes)
    if edit.ordered:
        return merge_hunks(original, edit)
    lines = original.split("\n")
    final_newline = lines[-1] == ""
    if final_newline:
        lines.pop()
    outcome = _merge_lines(lines, edit, language)
    return outcome if final_newline else _without_final_newline(outcome)


def _merge_lines(lines: list[str], edit: ParsedEdit, language: str | None) -> MergeOutcome:
    assert not isinstance(edit.changes, Substitutions)
    if isinstance(edit.changes, Sketch):
        sketch = edit.changes
        return merge_whole(lines, sketch) if sketch.complete else merge_sketch(lines, sketch, language)
    if edit.changes and all(change.hint.pinned for change in edit.changes):
        return merge_ranges(lines, edit.changes)
    return merge_replacements(lines, edit.changes)


def _without_final_newline(outcome: MergeOutcome) -> MergeOutcome:
    if isinstance(outcome, Merged):
        return replace(outcome, text=outcome.text.removesuffix("\n"))
    if isinstance(outcome, Unresolved):
        readings = tuple(replace(one, text=one.text.removesuffix("\n")) for one in outcome.candidates)
        return replace(outcome, candidates=readings)
    return outcome
