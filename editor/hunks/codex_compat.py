"""Applies hunks as Codex's apply_patch does.

From the place of the hunk before, lines are compared exactly, then without blanks at their ends, then without blanks
around them, then with typographic dashes, quotes and spaces as ASCII. The matched lines are replaced by the patch's
own, context included. A scope line is the next such line below. A hunk without old lines is put at the end of the file.
The result always ends with a newline. (openai/codex, codex-rs/apply-patch: lib.rs and seek_sequence.rs.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from editor.match.near_miss import describe_nearest
from editor.types import Merged, Replacement, Rung, Unresolved

_ASCII = {
    **dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"), "-"),
    **dict.fromkeys(map(ord, "\u2018\u2019\u201a\u201b"), "'"),
    **dict.fromkeys(map(ord, "\u201c\u201d\u201e\u201f"), '"'),
    **dict.fromkeys(map(ord, "\u00a0\u202f\u205f\u3000"), " "),
    **dict.fromkeys(range(0x2002, 0x200B), " "),
}
_KEYS: tuple[tuple[Rung, Callable[[str], str]], ...] = (
    ("exact", str),
    ("trailing_space", str.rstrip),
    ("reindent", str.strip),
    ("folded", lambda line: line.strip().translate(_ASCII)),
)
_ORDER = [rung for rung, _ in _KEYS]


def merge_as_codex(original: str, changes: Sequence[Replacement]) -> Merged | Unresolved:
    """Return the text that apply_patch writes, or its refusal."""
    lines = original.split("\n")
    if lines[-1] == "":
        lines.pop()
    at = 0
    rungs: set[Rung] = {"exact"}
    splices: list[tuple[int, int, tuple[str, ...]]] = []
    for change in changes:
        for scope in change.hint.scopes:
            found = _seek(lines, (scope,), at, at_end=False)
            if found is None:
                return Unresolved("not_found", f"Failed to find context '{scope}'.")
            at = found[0] + 1
        if not change.before:
            end = len(lines) - (bool(lines) and not lines[-1])
            splices.append((end, 0, change.after))
            continue
        before, after = change.before, change.after
        found = _seek(lines, before, at, at_end=change.hint.at_end)
        if found is None and not before[-1]:
            before, after = before[:-1], after[:-1] if after and not after[-1] else after
            found = _seek(lines, before, at, at_end=change.hint.at_end)
        if found is None:
            return Unresolved(
                "not_found", "Failed to find expected lines.", nearest=describe_nearest(lines, change.before)
            )
        splices.append((found[0], len(before), after))
        rungs.add(found[1])
        at = found[0] + len(before)
    return Merged(_write_splices(lines, splices), max(rungs, key=_ORDER.index))


def _seek(lines: Sequence[str], wanted: Sequence[str], start: int, *, at_end: bool) -> tuple[int, Rung] | None:
    if not wanted:
        return start, "exact"
    last = len(lines) - len(wanted)
    first = last if at_end else start
    for rung, key in _KEYS:
        sought = [key(line) for line in wanted]
        for at in range(max(0, first), last + 1):
            if all(key(line) == one for line, one in zip(lines[at : at + len(wanted)], sought, strict=True)):
                return at, rung
    return None


def _write_splices(lines: list[str], splices: Sequence[tuple[int, int, tuple[str, ...]]]) -> str:
    for start, length, after in sorted(splices, key=lambda splice: splice[0])[::-1]:
        lines[start : start + length] = after
    return "\n".join(lines if lines and not lines[-1] else [*lines, ""])
