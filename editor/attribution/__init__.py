"""Attribution: whether an edit accounts for every changed line of a result.

`lazy.py` answers it for lazy snippets, this module and `replacements.py` for explicit edits (all others).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from editor.attribution.replacements import MAX_TRIES, ReplacementSearch, can_reach, split_lines
from editor.diff import count_common_ends, line_opcodes
from editor.errors import TooMuchWorkError
from editor.execution import cache_results
from editor.match.file_style import find_line_replacements
from editor.match.ladder import LineIndex
from editor.types import Attribution, ParsedEdit, Sketch, Substitution, Substitutions, UnaccountedLine

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


@cache_results(32)  # a merge checks its readings, and its verification checks them again
def _attribute_snippet(
    original: str, result: str, sketch: Sketch, language: str | None, instructions: Sequence[str], *, explain: bool
) -> Attribution:
    from editor.attribution.lazy import attribute_snippet  # explicit edits do without it

    return attribute_snippet(original, result, sketch, language, instructions, explain=explain)


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


def find_unaccounted_lines(original: str, result: str, edit: ParsedEdit, *, by_model: bool) -> list[UnaccountedLine]:
    r"""Return the changed lines that an explicit edit does not account for, none where it leads to the result.

    Both texts have "\n" lines. `by_model` says that a block whose text is not found may be put at the one place where
    the result has it, if that place is similar. Raises `TooMuchWorkError` if a bound ended the search.
    """
    if isinstance(edit.changes, Sketch):
        (block,) = edit.changes.blocks
        leads = _strip_trailing_blanks(block) == _strip_trailing_blanks(result.removesuffix("\n").split("\n"))
    elif isinstance(edit.changes, Substitutions):
        leads = _SubstitutionSearch(original, result, edit, edit.changes.items, by_model).can_reach_result()
    else:
        leads = ReplacementSearch(original, result, edit, edit.changes, by_model).can_reach_result()
    return [] if leads else find_changed_lines(original, result, edit)


def _strip_trailing_blanks(lines: Sequence[str]) -> list[str]:
    rows = [line.rstrip() for line in lines]
    while rows and not rows[-1]:
        rows.pop()
    return rows


def find_changed_lines(original: str, result: str, edit: ParsedEdit) -> list[UnaccountedLine]:
    """Return the changed lines that the edit does not quote; all of them where it quotes each."""
    old, new = original.split("\n"), result.split("\n")
    quoted = {line.strip() for line in edit.old_lines}
    written = {line.strip() for line in edit.new_lines}
    found: list[UnaccountedLine] = []
    rest: list[UnaccountedLine] = []
    for op in line_opcodes(old, new):
        if op.equal:
            continue
        for at in range(op.a_start, op.a_end):
            line = UnaccountedLine(at + 1, "removed", old[at])
            (rest if old[at].strip() in quoted else found).append(line)
        for at in range(op.b_start, op.b_end):
            line = UnaccountedLine(at + 1, "added", new[at])
            (rest if new[at].strip() in written else found).append(line)
    return found or rest or [UnaccountedLine(0, "missing", line) for line in edit.new_lines[:1] or ("",)]


class _SubstitutionSearch:
    """Finds out whether substitutions of characters turn an original into a result."""

    def __init__(self, original: str, result: str, edit: ParsedEdit, items: Sequence[Substitution], by_model: bool):
        self.original, self.result, self.edit = original, result, edit
        self.items, self.by_model = items, by_model
        self.left = MAX_TRIES + len(items)

    def can_reach_result(self) -> bool:
        """Return whether the substitutions give the result, made in turn, or all in the original as whole lines."""
        if can_reach(self.original, len(self.items), lambda text: text == self.result, self._apply_substitution):
            return True
        if len(self.items) < 2 or any(item.replace_all or not item.old for item in self.items):
            return False
        changes = [item.to_replacement() for item in self.items]
        return ReplacementSearch(self.original, self.result, self.edit, changes, self.by_model).can_reach_result()

    def _apply_substitution(self, text: str, number: int) -> Iterator[str]:
        """Yield the texts after one substitution, for each place where it may be made."""
        self.left -= 1
        if self.left < 0:
            return
        item = self.items[number]
        if item.old == item.new:
            yield text
        elif not item.old:
            yield from () if text.strip() else (item.new,)
        elif item.old not in text:
            yield from self._apply_as_lines(text, number)
        elif item.replace_all:
            yield text.replace(item.old, item.new)
        else:
            last = number == len(self.items) - 1
            head, tail = count_common_ends(text, self.result) if last else (0, 0)
            low, high = head, len(text) - tail
            at = text.find(item.old, max(0, low - len(item.old) - len(item.new)))
            while 0 <= at <= high + len(item.new):
                yield text[:at] + item.new + text[at + len(item.old) :]
                at = text.find(item.old, at + 1)
            if item.new in text:  # sent again, it is made already
                yield text

    def _apply_as_lines(self, text: str, number: int) -> Iterator[str]:
        """Yield the texts after a substitution whose old text is found only as whole lines."""
        item = self.items[number]
        if item.new in text:
            yield text
        change = item.to_replacement()
        if number == len(self.items) - 1:
            if ReplacementSearch(text, self.result, self.edit, [change], self.by_model).can_reach_result():
                yield self.result
            return
        lines, ends = split_lines(text)
        if any(map(str.strip, change.before)):
            for made in find_line_replacements(LineIndex(lines), change):
                yield "\n".join(made) + "\n" * ends
