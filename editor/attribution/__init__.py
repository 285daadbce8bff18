"""Attribution: whether an edit accounts for every changed line of a result."""

from __future__ import annotations

from dataclasses import dataclass

from editor.attribution.explicit import find_changed_lines, find_unaccounted_lines
from editor.attribution.lazy import Attribution, attribute_snippet
from editor.errors import TooMuchWorkError
from editor.execution import cache_results
from editor.types import ParsedEdit, Sketch, UnaccountedLine

__all__ = ["Attribution", "Repair", "attribute_changes", "repair_result"]


@dataclass(frozen=True, slots=True)
class Repair:
    """A result rebuilt from the original and the accounted changes; `lines` are the unaccounted ones."""

    text: str
    lines: tuple[UnaccountedLine, ...]


def attribute_changes(
    original: str,
    result: str,
    edit: ParsedEdit,
    language: str | None,
    instructions: tuple[str, ...] = (),
    *,
    by_model: bool = False,
    explain: bool = True,
) -> Attribution:
    r"""Return the changed lines of a result that an edit does not account for, if any.

    Both texts have "\n" lines. `instructions` are texts outside of the edit that may say what is to be removed.
    `by_model` says that a model made the result: it may put a block whose text is not found at the one similar
    place. Without `explain` the result only says whether there are faults, which takes less time.
    """
    if isinstance(edit.changes, Sketch) and not edit.changes.complete:
        instructions = (*instructions, edit.prose) if edit.prose else instructions
        reading = _attribute_snippet(original, result, edit.changes, language, instructions, explain=False)
        if not explain or not reading.faults:
            return reading
        return _attribute_snippet(original, result, edit.changes, language, instructions, explain=True)
    try:
        return Attribution(tuple(find_unaccounted_lines(original, result, edit, by_model=by_model)))
    except TooMuchWorkError:
        return Attribution(tuple(find_changed_lines(original, result, edit)), bound="accounting_places")


# A merge checks its readings, and its verification checks them again.
_attribute_snippet = cache_results(32)(attribute_snippet)


def repair_result(
    original: str, result: str, edit: ParsedEdit, language: str | None, instructions: tuple[str, ...] = ()
) -> Repair | None:
    """Return a model's text for a lazy snippet with the file's own lines in place of unaccounted changes.

    None if nothing is to be repaired, or if the rebuilt text is no legal reading of the snippet or changes nothing.
    """
    reading = attribute_changes(original, result, edit, language, instructions, by_model=True)
    if reading.repaired is None or reading.repaired == original:
        return None
    if attribute_changes(original, reading.repaired, edit, language, instructions, by_model=True).faults:
        return None
    return Repair(reading.repaired, reading.faults)
