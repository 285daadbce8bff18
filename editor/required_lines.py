"""Checks that the lines of an edit are in the result, and that none of them is a stand-in for removed lines.

They apply to every edit that says exactly what should be in the file (all formats but lazy snippets): its author may
have left lines out by habit, and a merge would lose them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from editor.diff import line_opcodes
from editor.placeholders import holds_placeholder, is_comment, is_vague, may_be_placeholder, may_hold_placeholder
from editor.types import ParsedEdit, Sketch, Substitution, Substitutions, Unresolved


def iter_solid_lines(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are neither blank nor a placeholder, stripped."""
    return (line.strip() for line in lines if line.strip() and not holds_placeholder(line))


def find_missing_lines(new: Sequence[str], edit: ParsedEdit) -> list[str]:
    """Return the required lines that are missing, without indentation, as a merge may have shifted them."""
    wanted = _count_required_lines(edit)
    stands = Counter(stripped for line in new if (stripped := line.strip()) in wanted)
    return list((wanted - stands).elements())


def count_required(edit: ParsedEdit) -> int:
    """Return how many lines an edit requires."""
    return _count_required_lines(edit).total()


def find_missing_texts(merged: str, changes: Substitutions) -> list[str]:
    """Return the new texts that are not in the result, without those that a later substitution changes again."""
    return [
        item.new
        for at, item in enumerate(changes.items)
        if item.new not in merged and not any(_may_touch(later, item.new) for later in changes.items[at + 1 :])
    ]


def _may_touch(later: Substitution, text: str) -> bool:
    """Return whether a substitution may find a part of a text, even at one of its ends."""
    old = later.old
    if not old or old in text or text in old:
        return bool(old)
    return any(text.endswith(old[:size]) or text.startswith(old[-size:]) for size in range(1, min(len(old), len(text))))


def _count_required_lines(edit: ParsedEdit) -> Counter[str]:
    """Return how often at least each line must be in the result."""
    required: Counter[str] = Counter()
    if isinstance(edit.changes, Substitutions):
        return required
    if isinstance(edit.changes, Sketch):
        # A sketch may show a line of context twice, so that only its presence counts; a whole file is meant as it is.
        lines = iter_solid_lines(edit.new_lines)
        return Counter(lines if edit.changes.complete else set(lines))
    added: Counter[str] = Counter()
    later: Counter[str] = Counter()
    for change in reversed(edit.changes):
        before, after = Counter(iter_solid_lines(change.before)), Counter(iter_solid_lines(change.after))
        if "..." in before:
            # Dots on both sides stand for the same lines, or for themselves.
            del after["..."]
        for line, count in after.items():
            # Blocks are applied in turn, and one may remove lines that an earlier one wrote.
            required[line] = max(required[line], count - later[line])
        if edit.ordered:
            # Hunks do not overlap, so the added lines of all are in the result.
            added.update(after - before)
        else:
            later.update(before - after)
    return +(required | added)


# A comment of at most so many words is refused in any case; a longer one if more is removed than added.
_MAX_WORDS = 6


def refuse_stand_in(original: str, merged: str, edit: ParsedEdit) -> Unresolved | None:
    """Return the refusal of a merge if one of its new comments may stand for removed lines, else None."""
    known = set(map(str.strip, original.split("\n")))
    for before, after in _list_changes(original, merged, edit):
        found = next(
            (line for line in _find_stand_ins(before, after) if line.strip() not in known),
            None,
        )
        if found is not None:
            return Unresolved(
                "open_intent",
                f"The new comment '{found.strip()}' may stand for lines of the file that the edit takes away.",
                num_candidates=1,
                suggestion="Write out all lines that shall stand there, and leave the comment out.",
            )
    return None


def _list_changes(original: str, merged: str, edit: ParsedEdit) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    if isinstance(edit.changes, Sketch):
        yield original.split("\n"), merged.split("\n")
    elif isinstance(edit.changes, Substitutions):
        yield from ((item.old.split("\n"), item.new.split("\n")) for item in edit.changes.items)
    elif any(change.hint.num_unseen for change in edit.changes):
        yield original.split("\n"), merged.split("\n")
    else:
        yield from ((change.before, change.after) for change in edit.changes)


def _find_stand_ins(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Yield the new lines that may stand for removed lines next to them."""
    if not may_hold_placeholder("\n".join(after)):
        return
    for old, new in _find_replacements(before, after):
        gone, come = _count_statements(old), _count_statements(new)
        if not gone:
            continue
        for at, line in enumerate(new):
            neighbours = (new[at - 1] if at else "", new[at + 1] if at + 1 < len(new) else "")
            if _may_stand_for(line, neighbours, more=gone > come):
                yield line


def _may_stand_for(line: str, neighbours: Sequence[str], *, more: bool) -> bool:
    """Return whether a new line may stand for removed ones; `more` says that more statements are removed than added."""
    # Dots by themselves are a body in Python, and a part of a line in other places.
    if not line.strip(" \t.…"):
        return False
    if not may_be_placeholder(line):
        return holds_placeholder(line) or (more and is_vague(line))
    words = len(line.split()) - 1
    is_paragraph = words > _MAX_WORDS // 2 and any(map(is_comment, neighbours))
    return not is_paragraph and (words <= _MAX_WORDS or more)


def _count_statements(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) and not is_comment(line) for line in lines)


def _find_replacements(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the removed and the new lines of each change; changes with only blank lines between them are one."""
    old: list[str] = []
    new: list[str] = []
    for op in line_opcodes(before, after):
        if not op.equal:
            old += before[op.a_start : op.a_end]
            new += after[op.b_start : op.b_end]
        elif any(line.strip() for line in after[op.b_start : op.b_end]):
            yield old, new
            old, new = [], []
    yield old, new
