r"""Unified diffs: of git, hg, svn and plain `diff -u`, and as models write them.

Models write wrong counts and line numbers, `@@ ... @@` or a bare `@@`, no headers, blank context lines without their
space, a fence and talk around it all. So the lines decide, not the counts: counts that agree with the lines settle
where a hunk ends (and that `--- x` is a removed line `-- x`); otherwise it goes on to the next header, hunk, fence or
prose. Line numbers become hints. What cannot be read for certain is an error that names the line.

The library `unidiff` raises on wrong counts and takes a bare `@@` for talk, so it cannot read what models write; it is
the tests' oracle for the diffs that tools write.
"""

from __future__ import annotations

from dataclasses import replace

from editor.errors import EditSyntaxError
from editor.formats.answers import prose_of
from editor.formats.diff_hunks import NUMBERED
from editor.formats.diff_lines import FENCE, HOW, is_diff_fence, is_name_pair, is_signed
from editor.formats.diff_names import DEV_NULL, is_absent, name_in, path_and_move
from editor.formats.diff_reader import DiffReader, FileDiff
from editor.formats.strays import refuse_strays
from editor.types import Action, ParsedEdit, Replacement

_MAX_TALK_LINES = 60
_MAX_TALK_LINES_UNNUMBERED = 4


def looks_like(edit: str) -> bool:
    """Tell whether an edit is a unified diff: headers or a hunk, with no more than talk above."""
    lines = edit.split("\n")
    talk = 0
    for at, line in enumerate(lines):
        if line.startswith("diff --git ") or (is_name_pair(lines, at) and _opens_body(lines, at + 2)):
            return True
        if line.startswith("@@") and _opens_hunk(lines, at, talk):
            return True
        if is_diff_fence(line) and is_signed(lines, at + 1):
            return True
        talk += bool(line.strip()) and not FENCE.fullmatch(line)
        if talk > _MAX_TALK_LINES:
            return False
    return False


def parse_files(edit: str) -> tuple[ParsedEdit, ...]:
    """Return the edit of each file, in the diff's order; raises `EditSyntaxError`."""
    lines = edit.split("\n")
    if lines[-1] == "":
        lines.pop()
    if lines and all(line.endswith("\r") for line in lines):
        lines = [line[:-1] for line in lines]
    reader = DiffReader(lines)
    files = reader.files()
    if not files:
        message = "The edit has no line that begins with '@@' and no file header of a unified diff."
        raise EditSyntaxError("malformed", message, HOW)
    refuse_strays(lines, reader.outside, "the diff")
    prose = prose_of(lines, reader.outside)
    return tuple(replace(_parsed(file), prose=prose) for file in files)


def _opens_body(lines: list[str], at: int) -> bool:
    return at < len(lines) and (lines[at].startswith("@@") or lines[at][:1] in {" ", "+", "-"})


def _opens_hunk(lines: list[str], at: int, talk: int) -> bool:
    below = next((line for line in lines[at + 1 :] if line), "")
    if below[:1] not in {" ", "+", "-"}:
        return False
    if NUMBERED.fullmatch(lines[at].rstrip("\r")):
        return True
    return talk <= _MAX_TALK_LINES_UNNUMBERED and any(line[:1] in {"+", "-"} for line in lines[at + 1 : at + 60])


def _parsed(file: FileDiff) -> ParsedEdit:
    action = _action(file)
    path, move_to = _path_and_move(file, action)
    changes = tuple(hunk.change for hunk in file.hunks)
    if action == "create":
        changes = _created(file, changes)
    elif not changes and not move_to and action == "update":
        what = "changes only the mode" if file.mode_changed else "changes nothing"
        raise EditSyntaxError(
            "malformed",
            f"The diff of line {file.line} ('{path}') {what}.",
            "Leave this file out of the diff, or add its hunks.",
        )
    final_newline = next((hunk.final_newline for hunk in reversed(file.hunks) if hunk.final_newline is not None), None)
    return ParsedEdit(
        "udiff", changes, _detected(file), path, action, move_to, ordered=True, final_newline=final_newline
    )


def _action(file: FileDiff) -> Action:
    if file.created or name_in(file.old_header) == DEV_NULL:
        return "create"
    if file.deleted or name_in(file.new_header) == DEV_NULL:
        return "delete"
    if len(file.hunks) == 1:
        header = file.hunks[0].header
        if header.old == (0, 0) and is_absent(file.old_header):
            return "create"
        if header.new == (0, 0) and is_absent(file.new_header):
            return "delete"
    return "update"


def _path_and_move(file: FileDiff, action: Action) -> tuple[str, str]:
    if file.has_names:
        old, new = name_in(file.old_header), name_in(file.new_header)
        path, move_to = path_and_move(old, new)
        return (path, move_to) if all(file.renamed) or action == "update" else (path, "")
    path, move_to = path_and_move(*file.git_names) if file.git_names[0] else (file.index_name, "")
    if all(file.renamed) and not (path.endswith(file.renamed[0]) and move_to.endswith(file.renamed[1])):
        return file.renamed
    return path, move_to if action == "update" else ""


def _created(file: FileDiff, changes: tuple[Replacement, ...]) -> tuple[Replacement, ...]:
    if len(changes) > 1 or any(change.before for change in changes):
        raise EditSyntaxError(
            "malformed",
            f"The diff of line {file.line} creates a file, but holds lines of an old one or several hunks.",
            "Send a new file as '--- /dev/null', '+++ b/path', '@@ -0,0 +1,N @@' and lines that all begin with '+'.",
        )
    return tuple(Replacement((), change.after) for change in changes)


def _detected(file: FileDiff) -> str:
    kind = "git diff" if file.git_names != ("", "") else "unified diff"
    count = len(file.hunks)
    mode = ", its mode change left out" if file.mode_changed else ""
    return f"{kind} with {count} hunk{'' if count == 1 else 's'}{mode}"
