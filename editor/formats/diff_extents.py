"""Where a hunk of a unified diff ends: by the counts of its header if they agree with its lines, else by looks."""

from __future__ import annotations

from collections.abc import Sequence

from editor.formats.diff_hunks import Header
from editor.formats.diff_lines import closes_hunk, is_blank, is_name_pair, is_signature, no_hunk_line
from editor.formats.diff_names import DEV_NULL, name_in


def hunk_end(lines: Sequence[str], header: Header, start: int, names_above: tuple[str, str] | None) -> tuple[int, bool]:
    """Return the line behind a hunk whose lines begin at `start`, and whether the counts of its header are right.

    `names_above` are the headers of the file that the hunk belongs to. Raises `EditSyntaxError`.
    """
    end = _end_by_counts(lines, header, start, names_above)
    return (_end_by_looks(lines, start), False) if end is None else (end, True)


def _end_by_counts(lines: Sequence[str], header: Header, start: int, names_above: tuple[str, str] | None) -> int | None:
    """Return the line behind a hunk whose lines are as many as its header says, else None."""
    if header.old is None or header.new is None:
        return None
    old, new, at = header.old[1], header.new[1], start
    while old > 0 or new > 0:
        sign = lines[at][:1] or " " if at < len(lines) else "end"
        if sign not in {" ", "+", "-", "\\"} or (sign == "\\" and at == start):
            return None
        old -= sign in " -"
        new -= sign in " +"
        at += 1
    if old or new or (at - start > 2 and _took_header(lines, at, names_above)):
        return None
    while at < len(lines) and lines[at].startswith("\\ "):
        at += 1
    return None if _goes_on(lines, at) else at


def _took_header(lines: Sequence[str], end: int, names_above: tuple[str, str] | None) -> bool:
    """Tell whether the last two lines are rather the header of the next file (both counts one too large)."""
    if not is_name_pair(lines, end - 2) or end == len(lines) or not lines[end].startswith("@@"):
        return False
    headers = lines[end - 2][4:], lines[end - 1][4:]
    return headers != names_above and _are_one_file(name_in(headers[0]), name_in(headers[1]))


def _goes_on(lines: Sequence[str], at: int) -> bool:
    """Tell whether lines of a hunk follow although its counts are used up."""
    while at < len(lines) and is_blank(lines[at]):
        at += 1
    if at == len(lines) or lines[at][:1] not in {" ", "+", "-"} or is_name_pair(lines, at):
        return False
    return not is_signature(lines[at])


def _end_by_looks(lines: Sequence[str], start: int) -> int:
    """Return the line behind the last one that can belong to a hunk whose header has no right counts."""
    at = start
    while at < len(lines) and not closes_hunk(lines, at):
        line = lines[at]
        if line and line[0] not in " +-" and (not line.startswith("\\ ") or at == start):
            if _changes_follow(lines, at):
                raise no_hunk_line(lines, at)
            break
        at += 1
    while at > start and not lines[at - 1]:
        at -= 1
    return at


def _changes_follow(lines: Sequence[str], at: int) -> bool:
    while at < len(lines) and not closes_hunk(lines, at):
        if lines[at][:1] in {"+", "-"}:
            return True
        at += 1
    return False


def _are_one_file(old: str, new: str) -> bool:
    same = old.removeprefix("a/") == new.removeprefix("b/")
    return DEV_NULL in (old, new) or same or (old.startswith("a/") and new.startswith("b/"))
