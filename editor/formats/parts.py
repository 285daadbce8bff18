"""Parts of an edit that are for one file: a diff with a header above every hunk, a patch that names a file twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from editor.types import ParsedEdit


def join_parts(files: Sequence[ParsedEdit]) -> tuple[ParsedEdit, ...]:
    """Return the edits with the updates of one file joined, where a diff or patch names it more than once.

    Not joined are parts of which a later one quotes lines that an earlier one writes: they are to be applied in turn.
    """
    joined: dict[str, ParsedEdit] = {}
    for number, file in enumerate(files):
        known = joined.get(file.path)
        if known is None:
            joined[file.path] = file
        elif _may_join(known, file):
            joined[file.path] = _joined(known, file)
        else:
            joined[f"{file.path}\n{number}"] = file
    return tuple(joined.values())


def _may_join(one: ParsedEdit, other: ParsedEdit) -> bool:
    if not (isinstance(one.changes, tuple) and isinstance(other.changes, tuple) and one.ordered and other.ordered):
        return False
    if {one.action, other.action} != {"update"} or one.move_to or other.move_to:
        return False
    written = {line for change in one.changes for line in _solid(change.after) - _solid(change.before)}
    return not any(written & _solid(change.before) for change in other.changes)


def _joined(one: ParsedEdit, other: ParsedEdit) -> ParsedEdit:
    assert isinstance(one.changes, tuple)
    assert isinstance(other.changes, tuple)
    final_newline = one.final_newline if other.final_newline is None else other.final_newline
    prose = "\n".join(text for text in dict.fromkeys((one.prose, other.prose)) if text)
    detected = f"{one.detected}, and {other.detected}"
    changes = one.changes + other.changes
    return replace(one, changes=changes, detected=detected, final_newline=final_newline, prose=prose)


def _solid(lines: Sequence[str]) -> set[str]:
    return {line.strip() for line in lines if any(map(str.isalnum, line))}
