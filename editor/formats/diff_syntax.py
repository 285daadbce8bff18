"""Where a hunk of a unified diff ends: by the counts of its header if they agree with its lines, else by looks."""

from __future__ import annotations

from collections.abc import Sequence

from editor.formats.diff_hunks import Header
from editor.formats.diff_lines import (
    HOW,
    closes_hunk,
    ends_talk,
    is_blank,
    is_name_pair,
    is_signature,
    line_error,
    no_hunk_line,
)
from editor.formats.diff_names import DEV_NULL, may_name_files, name_in

_COUNTS = "Give the hunk a header with the right counts: '@@ -start,count +start,count @@'."


def hunk_end(lines: Sequence[str], header: Header, start: int, names_above: tuple[str, str] | None) -> tuple[int, bool]:
    """Return the line behind a hunk whose lines begin at `start`, and whether the counts of its header are right.

    `names_above` are the headers of the file that the hunk belongs to. Raises `EditSyntaxError`.
    """
    end = _end_by_counts(lines, header, start, names_above)
    if end is not None:
        return end, True
    end = _end_by_looks(lines, start, names_above)
    _refuse_unsigned(lines, header, start, end)
    return end, False


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


def _refuse_unsigned(lines: Sequence[str], header: Header, start: int, end: int) -> None:
    """Refuse lines behind a hunk that lack their '+': they stand right below it, or the counts are right with them."""
    behind = next((at for at in range(end, len(lines)) if not is_blank(lines[at])), len(lines))
    if behind == len(lines) or lines[behind][:1] in {"+", "-", " ", "@", "\\"} or ends_talk(lines, behind):
        return
    signs = [line[:1] or " " for line in lines[start:end] if not line.startswith("\\")]
    missing_old = header.old[1] - sum(sign in " -" for sign in signs) if header.old else 0
    missing = header.new[1] - sum(sign in " +" for sign in signs) if header.new else 0
    if header.new is not None and missing <= max(0, missing_old):
        # As many lines are missing on both sides: what follows is context.
        return
    rest = next((at for at in range(end, len(lines)) if ends_talk(lines, at)), len(lines))
    while rest > end and is_blank(lines[rest - 1]):
        rest -= 1
    if behind == end or missing == rest - end:
        raise line_error(
            lines,
            behind,
            "stands right below a hunk, without ' ', '-' or '+' before it; it may be one of its lines",
            HOW,
        )


def _end_by_looks(lines: Sequence[str], start: int, names_above: tuple[str, str] | None) -> int:
    """Return the line behind the last one that can belong to a hunk whose header has no right counts."""
    at = start
    while at < len(lines) and not _closes(lines, at, names_above):
        line = lines[at]
        if line and line[0] not in " +-" and (not line.startswith("\\ ") or at == start):
            if _changes_follow(lines, at, names_above):
                raise no_hunk_line(lines, at)
            break
        at += 1
    while at > start and not lines[at - 1]:
        at -= 1
    return at


def _closes(lines: Sequence[str], at: int, names_above: tuple[str, str] | None) -> bool:
    """Tell whether a hunk ends above a line; raises `EditSyntaxError` where that cannot be told.

    A line '-- a' that is removed, above '++ b' that is added, looks like the header of a file.
    """
    closes = closes_hunk(lines, at)
    is_header = closes and is_name_pair(lines, at) and names_above and names_above[0]
    if is_header and not may_name_files(lines[at][4:], lines[at + 1][4:]):
        raise line_error(lines, at, "may name another file, or be a line that goes", _COUNTS)
    return closes


def _changes_follow(lines: Sequence[str], at: int, names_above: tuple[str, str] | None) -> bool:
    while at < len(lines) and not _closes(lines, at, names_above):
        if lines[at][:1] in {"+", "-"}:
            return True
        at += 1
    return False


def _are_one_file(old: str, new: str) -> bool:
    same = old.removeprefix("a/") == new.removeprefix("b/")
    return DEV_NULL in (old, new) or same or (old.startswith("a/") and new.startswith("b/"))
