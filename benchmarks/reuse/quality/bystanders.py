"""Probes whose answer an edit leaves alone: another function is written again, or continued from its middle."""

from __future__ import annotations

import ast
from collections.abc import Callable
from random import Random

from benchmarks.reuse.quality import conclusions, lookups
from benchmarks.reuse.quality.names import is_alone
from benchmarks.reuse.quality.probe import Probe
from benchmarks.reuse.quality.sources import Stretch

EDITS: tuple[Callable[[Stretch, Random], Probe | None], ...] = (
    lookups.constant,
    lookups.default,
    lookups.renamed,
    conclusions.caller,
    conclusions.kind_of,
    conclusions.deleted,
    conclusions.owner,
)
"""Where the edits come from: one token for another, names that are longer, a line more or less, a whole definition."""

SHORTEST, LONGEST = 450, 2_400


def repeat(stretch: Stretch, random: Random) -> Probe | None:
    """A function behind the edit is to be written again."""
    found = _edit_and_bystander(stretch, random)
    if found is None:
        return None
    edit, name, text = found
    begun = text[: text.index(f"{name}(") + len(f"{name}(")].lstrip()
    question = f"Write the function `{name}` of the file again, without a change."
    return _probe("repeat", edit, question, f"```python\n{begun}")


def go_on(stretch: Stretch, random: Random) -> Probe | None:
    """A function behind the edit is to be continued from its second quarter on."""
    found = _edit_and_bystander(stretch, random)
    if found is None:
        return None
    edit, name, text = found
    lines = text.splitlines(keepends=True)
    begun = "".join(lines[: max(2, len(lines) // 4)])
    return _probe("go on", edit, f"Write out the function `{name}` as it stands in the file.", f"```python\n{begun}")


def _edit_and_bystander(stretch: Stretch, random: Random) -> tuple[Probe, str, str] | None:
    """An edit, and name and text of a function behind it that holds nothing of it."""
    edit = random.choice(EDITS)(stretch, random)
    if edit is None:
        return None
    text = edit.after
    after = Stretch(stretch.file_name, text)
    changed_to = _line_end(text, _last_changed(edit))
    found = []
    for node in after.methods():
        start, end = after.whole(node)
        whole = text[start:end]
        apart = start > changed_to and not any(symbol in whole for symbol in edit.symbols)
        apart = apart and is_alone(text, f"def {node.name}(")
        if apart and SHORTEST <= len(whole) <= LONGEST and not isinstance(node.body[0], ast.Pass):
            found.append((node.name, whole))
    if not found:
        return None
    return edit, *random.choice(found)


def _probe(kind: str, edit: Probe, question: str, begun: str) -> Probe:
    return Probe(
        kind, "insensitive", edit.file_name, edit.before, edit.after, question, begun, symbols=edit.symbols
    )  # fmt: skip


def _last_changed(edit: Probe) -> int:
    """Where in the new text the old one's end begins."""
    pairs = zip(reversed(edit.before), reversed(edit.after), strict=False)
    shorter = min(len(edit.before), len(edit.after))
    same = next((at for at, (old, new) in enumerate(pairs) if old != new), shorter)
    return len(edit.after) - same


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1
