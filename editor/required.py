"""What an edit requires to stand in the result, and what of it does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from editor.formats.placeholders import holds_placeholder
from editor.types import ParsedEdit, Sketch, Substitution, Substitutions


def solid(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that say something, stripped: neither blank nor a placeholder."""
    return (line.strip() for line in lines if line.strip() and not holds_placeholder(line))


def missing_lines(new: Sequence[str], edit: ParsedEdit) -> list[str]:
    """Return the required lines that are not there, without indentation: a merge may have shifted the lines."""
    wanted = _required(edit)
    stands = Counter(stripped for line in new if (stripped := line.strip()) in wanted)
    return list((wanted - stands).elements())


def num_required(edit: ParsedEdit) -> int:
    """Return how many lines an edit requires."""
    return _required(edit).total()


def missing_texts(merged: str, changes: Substitutions) -> list[str]:
    """Return the new texts that are not in the result, but for those that a later substitution changes again."""
    return [
        item.new
        for at, item in enumerate(changes.items)
        if item.new not in merged and not any(_touches(later, item.new) for later in changes.items[at + 1 :])
    ]


def _touches(later: Substitution, text: str) -> bool:
    """Tell whether a substitution may find some of a text, be it at one of its ends."""
    old = later.old
    if not old or old in text or text in old:
        return bool(old)
    return any(text.endswith(old[:size]) or text.startswith(old[-size:]) for size in range(1, min(len(old), len(text))))


def _required(edit: ParsedEdit) -> Counter[str]:
    """Return how often each line has to stand in the result at least."""
    required: Counter[str] = Counter()
    if isinstance(edit.changes, Substitutions):
        return required
    if isinstance(edit.changes, Sketch):
        # A sketch may show a line of context twice, so that only its presence counts; a whole file is meant as it is.
        lines = solid(edit.added_lines)
        return Counter(lines if edit.changes.complete else set(lines))
    added: Counter[str] = Counter()
    later: Counter[str] = Counter()
    for change in reversed(edit.changes):
        before, after = Counter(solid(change.before)), Counter(solid(change.after))
        if "..." in before:
            # Dots on both sides stand for the same lines, or for themselves.
            del after["..."]
        for line, count in after.items():
            # Blocks are applied in turn, and one may take away what an earlier one wrote.
            required[line] = max(required[line], count - later[line])
        if edit.ordered:
            # Hunks do not overlap: what each adds stands beside what the others add.
            added.update(after - before)
        else:
            later.update(before - after)
    return +(required | added)
