"""Selects the edit of one file from an edit of several files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from editor.errors import EditSyntaxError
from editor.formats.file_names import do_paths_fit, path_parts
from editor.formats.strays import join_parts
from editor.types import ParsedEdit, Replacement, Substitutions


def edit_for(path: str, edits: Sequence[ParsedEdit]) -> ParsedEdit:
    """Return the edit that a file's path fits; an only edit fits any. Raises EditSyntaxError where none or two fit.

    Two paths fit where they are equal, or one is the end of the other: `/home/me/src/a.py` and `src/a.py`. Parts of one
    file are joined. What a diff, a patch or a call has for other files is left out, and `left_out` names them; a block
    below another name may be meant for this file, so that is an error, too.
    """
    edits = join_parts(edits)
    if len(edits) == 1:
        return edits[0]
    fitting = [edit for edit in edits if do_paths_fit(path, edit.path)]
    same = [edit for edit in fitting if path_parts(edit.path) == path_parts(path)]
    if len(same or fitting) == 1 and edits[0].format != "search_replace":
        (edit,) = same or fitting
        return replace(edit, left_out=tuple(other.path for other in edits if other is not edit))
    names = ", ".join(edit.path for edit in edits[:10]) + (" and more" if len(edits) > 10 else "")
    which = "what is for the others would be lost beside" if len(fitting) == 1 else f"{len(fitting)} of them fit"
    which = which if fitting else "none of them is"
    target = f"; {which} '{path}'" if path else ""
    raise EditSyntaxError(
        "several_files",
        f"The edit is for {len(edits)} files: {names}{target}.",
        "Name the one that is meant by its path, or give no file: the edit is then applied to all that it names.",
    )


def render_blocks(edit: ParsedEdit) -> str:
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
