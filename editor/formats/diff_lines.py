"""Lines of a unified diff: what they are, and what is said of one that is wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence

from editor.errors import EditSyntaxError

HOW = (
    "Write each hunk as a line '@@ -start,count +start,count @@', then every line with ' ' (kept), '-' (removed) or "
    "'+' (added) before it, blank lines too."
)

FENCE = re.compile(r"(`{3,}|~{3,})[\w-]*\s*")
_DIFF_FENCE = re.compile(r"(`{3,}|~{3,})(?:diff|patch)\s*", re.IGNORECASE)
_SIGNATURE = re.compile(r"-- ?|-{3,}")
_FRAME = re.compile(
    r"diff .*|Only in .*|Binary files .*|index \w+\.\.\w+.*|(?:new|deleted|old) (?:file )?mode .*|similarity .*|"
    r"Property changes on: .*|={10,}|_{10,}|[A-Z]+|</?(?:diff|patch|edits?|changes|answer|response|output)>|"
    r"['\"`]{3}|From [0-9a-f]{40} .*|commit [0-9a-f]{7,40}.*"
)
_VERSION = re.compile(r"\d+(\.\w+)+.*")


def is_blank(line: str) -> bool:
    """Tell whether a line holds nothing but spaces."""
    return not line.strip()


def is_signature(line: str) -> bool:
    """Tell whether a line is the '-- ' above a mail's signature, or a rule."""
    return _SIGNATURE.fullmatch(line) is not None


def is_diff_fence(line: str) -> bool:
    """Tell whether a line opens a fence that says that it holds a diff."""
    return _DIFF_FENCE.fullmatch(line) is not None


def is_signed(lines: Sequence[str], start: int) -> bool:
    """Tell whether a fence that opens above a line holds a hunk without a header: a sign before every solid line."""
    end = next((at for at in range(start, len(lines)) if FENCE.fullmatch(lines[at])), len(lines))
    body = lines[start:end]
    if is_name_pair(lines, start) or not any(line[:1] in {"+", "-"} for line in body):
        return False
    return all(line[:1] in {" ", "+", "-", ""} for line in body)


def is_name_pair(lines: Sequence[str], at: int) -> bool:
    """Tell whether a `--- ` and a `+++ ` line stand here, each with a name."""
    if at < 0 or at + 1 >= len(lines):
        return False
    old, new = lines[at], lines[at + 1]
    return old.startswith("--- ") and new.startswith("+++ ") and not is_blank(old[4:]) and not is_blank(new[4:])


def closes_hunk(lines: Sequence[str], at: int) -> bool:
    """Tell whether a hunk ends above a line whatever the counts in its header say."""
    line = lines[at]
    if line.startswith(("@@", "diff --git ", "Index: ", "*** End Patch")) or FENCE.fullmatch(line):
        return True
    if line == "-- " and at + 1 < len(lines) and _VERSION.fullmatch(lines[at + 1]):
        return True
    return is_name_pair(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith("@@")


def ends_talk(lines: Sequence[str], at: int) -> bool:
    """Tell whether a line behind a hunk belongs to what tools and shells write there, and to no file."""
    return closes_hunk(lines, at) or _FRAME.fullmatch(lines[at]) is not None or is_signature(lines[at])


def line_error(lines: Sequence[str], at: int, what: str, how: str) -> EditSyntaxError:
    """Return the error that shows a line, says what is wrong with it and how to do it."""
    line = lines[at] if at < len(lines) else ""
    shown = line if len(line) <= 60 else line[:57] + "..."
    return EditSyntaxError("malformed", f"Line {at + 1} of the diff ('{shown}') {what}.", how)


def no_hunk_line(lines: Sequence[str], at: int) -> EditSyntaxError:
    """Return the error of a line that stands among those of a hunk."""
    return line_error(lines, at, "stands among the lines of a hunk, but begins with none of ' ', '+', '-'", HOW)
