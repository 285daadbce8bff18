"""Accounting: does a legal reading of an edit lead from the original to a result, and if not, which lines are in none?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from editor.accounting.explicit import unaccounted_lines
from editor.accounting.lazy import Reading, read
from editor.types import ParsedEdit, Sketch, UnaccountedLine

__all__ = ["Reading", "Repair", "account", "repair"]


@dataclass(frozen=True, slots=True)
class Repair:
    """A result rebuilt from the original and the accounted changes; `lines` are those that were not accounted for."""

    text: str
    lines: tuple[UnaccountedLine, ...]


def account(
    original: str,
    result: str,
    edit: ParsedEdit,
    language: str | None,
    said: Sequence[str] = (),
    *,
    by_model: bool = False,
) -> Reading:
    r"""Return whether an edit accounts for every changed line of a result, and the lines that it does not account for.

    Both texts have "\n" lines. `said` are texts beside the edit that may say what is to go (the instruction). `by_model`
    says that a model made the result, which may put a block whose text stands nowhere at the one place that is like it.
    """
    if isinstance(edit.changes, Sketch) and not edit.changes.complete:
        return read(original, result, edit.changes, language, said)
    return Reading(tuple(unaccounted_lines(original, result, edit, by_model=by_model)))


def repair(
    original: str, result: str, edit: ParsedEdit, language: str | None, said: Sequence[str] = ()
) -> Repair | None:
    """Return a model's text for a lazy snippet with the file's own lines where the snippet accounts for no change.

    None where nothing is to be repaired, or the rebuilt text is no legal reading of the snippet or changes nothing.
    """
    reading = account(original, result, edit, language, said, by_model=True)
    if reading.repaired is None or reading.repaired == original:
        return None
    if account(original, reading.repaired, edit, language, said, by_model=True).faults:
        return None
    return Repair(reading.repaired, reading.faults)
