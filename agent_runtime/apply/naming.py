"""Which of several files' edits belongs to a file that was named from outside, and how it reads on its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from editor.errors import EditSyntaxError
from editor.types import ParsedEdit, Replacement, Substitutions


def edit_for(path: str, edits: Sequence[ParsedEdit]) -> ParsedEdit:
    """Return the edit that a file's path fits; an only edit fits any. Raises EditSyntaxError where none or two fit.

    Two paths fit where they are equal, or one is the end of the other: `/home/me/src/a.py` and `src/a.py`.
    """
    if len(edits) == 1:
        return edits[0]
    fitting = [edit for edit in edits if _fit(path, edit.path)]
    same = [edit for edit in fitting if _parts(edit.path) == _parts(path)]
    if len(same or fitting) == 1:
        return (same or fitting)[0]
    names = ", ".join(edit.path for edit in edits[:10]) + (" and more" if len(edits) > 10 else "")
    which = f"{len(fitting)} of them fit" if fitting else "none of them is"
    target = f"; {which} '{path}'" if path else ""
    raise EditSyntaxError(
        "several_files",
        f"The edit is for {len(edits)} files: {names}{target}.",
        "Name the one that is meant by its path, or give no file: the edit is then applied to all that it names.",
    )


def as_blocks(edit: ParsedEdit) -> str:
    """Write one file's edit as SEARCH/REPLACE blocks for a model to read; "" if it does not quote what it changes."""
    changes = edit.changes
    if isinstance(changes, Substitutions):
        pairs = [(item.old, item.new) for item in changes.items]
    elif isinstance(changes, tuple):
        pairs = [("\n".join(change.before), "\n".join(change.after)) for change in changes]
        if not all(_quotes(change) for change in changes):
            return ""
    else:
        return ""
    blocks = (f"<<<<<<< SEARCH\n{old}\n=======\n{_line(new)}>>>>>>> REPLACE\n" for old, new in pairs)
    return "".join(blocks)


def _quotes(change: Replacement) -> bool:
    return bool(change.before) and not change.hint.pinned


def _line(text: str) -> str:
    return text + "\n" if text else ""


def _fit(path: str, other: str) -> bool:
    one, two = _parts(path), _parts(other)
    size = min(len(one), len(two))
    return size > 0 and one[-size:] == two[-size:]


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in PurePosixPath(path.replace("\\", "/")).parts if part != "/")
