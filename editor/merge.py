"""Merge an edit into a text without a model.

`Merged` is certain where one place fits at every change and no line of the file is lost that the edit does not name. A
lazy snippet that no rule decides is merged as its likeliest reading, where that is sure enough (`editor.reader`).
Everything else is `Unresolved`, with the reason for whoever sent the edit; a model may then decide.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from editor.attribution import attribute_changes
from editor.errors import TooMuchWorkError, format_list
from editor.execution import cache_results
from editor.hunks.apply import merge_hunks
from editor.match.ladder import LineIndex, strip_blanks
from editor.required_lines import refuse_stand_in
from editor.search_replace.blocks import merge_ranges, merge_replacements, merge_whole
from editor.search_replace.strings import merge_substitutions
from editor.types import Merged, MergeOutcome, ParsedEdit, Sketch, Substitutions, Unresolved

if TYPE_CHECKING:
    from editor.reader.reader import RankedReadings

_MORE_LINES = "Show more lines above and below the new ones, or the definition or section that they belong to."
_EXACT_LINES = "Send SEARCH/REPLACE blocks with the exact lines to change."
_SMALLER = "Send the edit in several parts, each with lines around its changes that stand only once in the file."


def merge(
    original: str, edit: ParsedEdit, language: str | None = None, instructions: tuple[str, ...] = ()
) -> MergeOutcome:
    r"""Apply an edit to a text with "\n" lines. The final newline stays as it was; a created file gets one.

    With a `language` (of `editor.grammars`) lazy snippets are aligned by their definitions, else by lines alone. In
    YAML, where indentation has meaning, a merge that moves lines to another depth is not certain. `instructions` are
    texts around a lazy snippet that may say what is to be removed. No reading of a lazy snippet is returned, merged or
    as a candidate, that changes a line for which the snippet does not account.
    """
    try:
        outcome = _merge(original, edit, language, instructions)
    except TooMuchWorkError as error:
        return Unresolved("too_much_work", error.message, suggestion=_SMALLER)
    if not isinstance(outcome, Merged):
        return outcome
    return (refuse_stand_in(original, outcome.text, edit) if edit.format != "lazy" else None) or outcome


def _merge(original: str, edit: ParsedEdit, language: str | None, instructions: tuple[str, ...]) -> MergeOutcome:
    if isinstance(edit.changes, Substitutions):
        return merge_substitutions(original, edit.changes, language)
    if edit.ordered:
        return merge_hunks(original, edit, language)
    lines = original.split("\n")
    final_newline = lines[-1] == ""
    if final_newline:
        lines.pop()
    outcome = _merge_lines(lines, edit, language)
    outcome = outcome if final_newline else _drop_final_newline(outcome)
    if not isinstance(edit.changes, Sketch) or edit.changes.complete:
        return outcome
    outcome = _refuse_doubtful(original, lines, outcome, edit, language, instructions)
    if not isinstance(outcome, Unresolved):
        return outcome
    from editor.lazy.merge import find_unclear_line

    answer = _read_again(original, edit, language, instructions)
    if answer.certainty is not None and find_unclear_line(lines, edit.changes):
        answer = replace(answer, certainty=None)
    return _take_first(outcome, answer)


def _take_first(unresolved: Unresolved, answer: RankedReadings) -> MergeOutcome:
    """Return the first reading of a snippet that no rule decides if it is sure enough, else all readings."""
    found = answer.candidates
    if answer.certainty is None:
        return replace(unresolved, candidates=found, num_candidates=len(found) or unresolved.num_candidates)
    first = found[0]
    return Merged(
        first.text,
        "anchored",
        len(found),
        certainty=answer.certainty,
        confidence=first.confidence,
        candidates=found,
    )


@cache_results(2)  # an edit that no rule decides is often sent again: with a model, or to be written
def _read_again(original: str, edit: ParsedEdit, language: str | None, instructions: tuple[str, ...]) -> RankedReadings:
    from editor.reader.reader import read_snippet  # it imports numpy, which takes 0.1 s

    return read_snippet(original, edit, language, instructions)


def _refuse_doubtful(
    original: str,
    lines: list[str],
    outcome: MergeOutcome,
    edit: ParsedEdit,
    language: str | None,
    instructions: tuple[str, ...],
) -> MergeOutcome:
    """Refuse the merge of a snippet by rule if it is no legal reading, or if another place may be meant."""
    assert isinstance(edit.changes, Sketch)
    if isinstance(outcome, Unresolved):
        return outcome
    result = outcome.text if isinstance(outcome, Merged) else original
    faults = attribute_changes(original, result, edit, language, instructions, explain=False).faults
    if faults:
        shown = format_list("it does not account for", [f"{fault.kind} {fault.text.strip()!r}" for fault in faults])
        if isinstance(outcome, Merged):
            reason = f"The only reading of the snippet by rule changes lines for which {shown}."
        else:
            reason = f"The lines of the snippet stand in the file, but not as the snippet shows them: {shown}."
        return Unresolved("open_intent", reason, suggestion=_EXACT_LINES)
    if isinstance(outcome, Merged):
        twin = _describe_twin(lines, edit.changes)
        return Unresolved("ambiguous", twin, 2, suggestion=_MORE_LINES) if twin else _refuse_prose(edit) or outcome
    return outcome


def _describe_twin(lines: list[str], sketch: Sketch) -> str:
    """Return a sentence that the kept lines of a block are in several places of the file, or ""."""
    solid = LineIndex([line for line in lines if line.strip()]).key_by(strip_blanks)
    for block in sketch.blocks:
        keys = [strip_blanks(line) for line in block if line.strip()]
        kept = [key for key in keys if key in solid.places]
        if kept == keys or not any(map(str.isalnum, "".join(kept))):
            continue
        starts = solid.find_starts(kept)
        if len(starts) > 1:
            return f"The lines around the new ones, from {kept[0]!r} on, stand in {len(starts)} places of the file."
    return ""


def _merge_lines(lines: list[str], edit: ParsedEdit, language: str | None) -> MergeOutcome:
    assert not isinstance(edit.changes, Substitutions)
    if isinstance(edit.changes, Sketch):
        sketch = edit.changes
        if sketch.complete:
            return merge_whole(lines, sketch)
        from editor.lazy.merge import merge_sketch  # explicit edits do without it

        return merge_sketch(lines, sketch, language)
    if edit.changes and all(change.hint.pinned for change in edit.changes):
        return merge_ranges(lines, edit.changes)
    return merge_replacements(lines, edit.changes, language)


def _drop_final_newline(outcome: MergeOutcome) -> MergeOutcome:
    if isinstance(outcome, Merged):
        return replace(outcome, text=outcome.text.removesuffix("\n"))
    if isinstance(outcome, Unresolved):
        readings = tuple(replace(one, text=one.text.removesuffix("\n")) for one in outcome.candidates)
        return replace(outcome, candidates=readings)
    return outcome


_GOES = re.compile(
    r"\b(?:remov\w+|delet\w+|drop(?:s|ped)?|renam\w+|mov(?:e|es|ed|ing)|replac\w+|get rid|rid of|goes? away|no longer|"
    r"instead of|swap\w*)\b",
    re.IGNORECASE,
)
# Between the old and the new lines: "with:", "to this:", "After:".
_BECOMES = re.compile(
    r"^\W*(?:with|to|into|by|after|becomes?|new|now|should be)\b.{0,40}:\W*$", re.IGNORECASE | re.MULTILINE
)


def _refuse_prose(edit: ParsedEdit) -> Unresolved | None:
    """Return why a snippet cannot be merged for certain: the prose around it says more than its lines; else None."""
    told = _GOES.search(edit.prose) or _BECOMES.search(edit.prose)
    if told is None:
        return None
    return Unresolved(
        "open_intent",
        f"The text around the code says more than the code shows ('{told[0].strip()}'): lines may have to go.",
        suggestion="Send SEARCH/REPLACE blocks with the lines that change and those that go.",
    )
