r"""The syntax of unified diffs: hunk headers, lines, file names and the end of a hunk.

--- a/src/x.py                            prefixes of git, hg
--- "a/\303\274.py"                       C quoting, octal bytes of UTF-8
--- x.py<TAB>2024-01-01 10:00:00 +0000    a tab ends the name; a time stamp after spaces does too
--- x.py<TAB>(revision 12)                Subversion
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from editor.errors import EditSyntaxError
from editor.types import Hint, Replacement

# A number with more digits is no line number, and Python refuses to parse it.
_NUMBER = r"(\d{1,18})"
NUMBERED = re.compile(rf"@@+ -{_NUMBER}(?:,{_NUMBER})? \+{_NUMBER}(?:,{_NUMBER})? @@+(?P<heading>.*)")
_NO_CODE = re.compile(r"[\s.,+\-\d]*")


@dataclass(frozen=True, slots=True)
class Header:
    """One `@@` line: the ranges [start, count) of both sides, None where it has no numbers."""

    old: tuple[int, int] | None
    new: tuple[int, int] | None
    scope: str


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk; `final_newline` is whether the new text ends with one, None if the hunk does not say."""

    change: Replacement
    header: Header
    final_newline: bool | None


def parse_header(line: str) -> Header:
    """Parse an `@@` line."""
    line = line.rstrip("\r")
    numbered = NUMBERED.fullmatch(line)
    if numbered:
        old = (int(numbered[1]), int(numbered[2] or 1))
        new = (int(numbered[3]), int(numbered[4] or 1))
        return Header(old, new, numbered["heading"].strip())
    inside, closing, heading = line[2:].partition("@@")
    named = [part.strip() for part in ((inside, heading) if closing else (line[2:],))]
    return Header(None, None, next((part for part in named if not _NO_CODE.fullmatch(part)), ""))


def build_hunk(header: Header, body: Sequence[str], counted: bool) -> Hunk:
    """Return the hunk of the lines below a header; `counted` says whether its counts are right."""
    before: list[str] = []
    after: list[str] = []
    sign = ""
    old_open, new_open = -1, -1
    for line in body:
        if line.startswith("\\"):
            old_open = len(before) if sign in " -" else old_open
            new_open = len(after) if sign in " +" else new_open
            continue
        sign, text = line[:1] or " ", line[1:]
        if sign in " -":
            before.append(text)
        if sign in " +":
            after.append(text)
    old_is_open, new_is_open = old_open == len(before), new_open == len(after)
    hint = Hint(_choose_line_hint(header, counted), (header.scope,) if header.scope else (), old_is_open or new_is_open)
    final_newline = None if old_is_open == new_is_open else old_is_open
    return Hunk(Replacement(tuple(before), tuple(after), hint), header, final_newline)


def _choose_line_hint(header: Header, counted: bool) -> int | None:
    """Return the line index of a header, None if it has none; '-1,N' with wrong counts is only a filled-in form."""
    if header.old is None or (not counted and header.old[0] <= 1):
        return None
    start, count = header.old
    return start - 1 if count and start else start


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
    """Return whether a line has only white space."""
    return not line.strip()


def is_signature(line: str) -> bool:
    """Return whether a line is the '-- ' above the signature of a mail, or a rule."""
    return _SIGNATURE.fullmatch(line) is not None


def is_diff_fence(line: str) -> bool:
    """Return whether a line opens a fence for a diff."""
    return _DIFF_FENCE.fullmatch(line) is not None


def is_signed(lines: Sequence[str], start: int) -> bool:
    """Return whether the fence opened above a line holds a hunk without a header: every solid line has a sign."""
    end = next((at for at in range(start, len(lines)) if FENCE.fullmatch(lines[at])), len(lines))
    body = lines[start:end]
    if is_name_pair(lines, start) or not any(line[:1] in {"+", "-"} for line in body):
        return False
    return all(line[:1] in {" ", "+", "-", ""} for line in body)


def is_name_pair(lines: Sequence[str], at: int) -> bool:
    """Return whether a `--- ` and a `+++ ` line are here, each with a name."""
    if at < 0 or at + 1 >= len(lines):
        return False
    old, new = lines[at], lines[at + 1]
    return old.startswith("--- ") and new.startswith("+++ ") and not is_blank(old[4:]) and not is_blank(new[4:])


def closes_hunk(lines: Sequence[str], at: int) -> bool:
    """Return whether a hunk ends above a line regardless of the counts in its header."""
    line = lines[at]
    if line.startswith(("@@", "diff --git ", "Index: ", "*** End Patch")) or FENCE.fullmatch(line):
        return True
    if line == "-- " and at + 1 < len(lines) and _VERSION.fullmatch(lines[at + 1]):
        return True
    return is_name_pair(lines, at) and at + 2 < len(lines) and lines[at + 2].startswith("@@")


def ends_talk(lines: Sequence[str], at: int) -> bool:
    """Return whether a line after a hunk is output of a tool or shell, and no line of a file."""
    return closes_hunk(lines, at) or _FRAME.fullmatch(lines[at]) is not None or is_signature(lines[at])


def line_error(lines: Sequence[str], at: int, what: str, how: str) -> EditSyntaxError:
    """Return an error that shows a line, its fault, and what to send instead."""
    line = lines[at] if at < len(lines) else ""
    shown = line if len(line) <= 60 else line[:57] + "..."
    return EditSyntaxError("malformed", f"Line {at + 1} of the diff ('{shown}') {what}.", how)


def stray_line_error(lines: Sequence[str], at: int) -> EditSyntaxError:
    """Return the error of a line without a sign among the lines of a hunk."""
    return line_error(lines, at, "stands among the lines of a hunk, but begins with none of ' ', '+', '-'", HOW)


DEV_NULL = "/dev/null"
# Two paths are shorter on any system; each space of a header is tried as the one between them.
_MAX_HEADER_CHARS = 10_000
_STAMP = re.compile(
    r"(?<!\s)\s++(\d{4}-\d\d-\d\d[ T]\d\d:\d\d.*|\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d.*)$"
    r"|(?<!\s)\s*+\((revision \d+|working copy|nonexistent)\)$"
)
_EPOCH = re.compile(r"\s(1970-01-01 00:00:00|\w{3} Jan 0?1 00:00:00 1970)|\((revision 0|nonexistent)\)")
_ESCAPE = re.compile(r'\\([0-7]{1,3}|[abfnrtv"\\])')
_NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", '"': '"', "\\": "\\"}
# Git's prefixes of old and new names, by configuration and by what is compared.
_PREFIXES = (("a/", "b/"), ("i/", "w/"), ("c/", "i/"), ("c/", "w/"), ("o/", "w/"), ("b/", "a/"))
_BACKUPS = (".orig", ".old", ".bak", "~")
_GIT_HEADER = re.compile(r'diff --git ("(?:[^"\\]|\\.)*"|\S.*?) ("(?:[^"\\]|\\.)*"|\S.*)')


def parse_name(header: str) -> str:
    """Return the file name after `--- ` or `+++ `, prefix included."""
    header = header.rstrip("\r")
    if header.startswith('"'):
        closed = re.match(r'"((?:[^"\\]|\\.)*)"', header)
        return _unquote(closed[1]) if closed else header
    return _STAMP.sub("", header.split("\t", 1)[0]).rstrip(" ")


def is_absent(header: str) -> bool:
    """Return whether a header's time stamp or revision may say that the file does not exist on this side."""
    return parse_name(header) == DEV_NULL or _EPOCH.search(header) is not None


def resolve_names(old: str, new: str) -> tuple[str, str]:
    """Return the path of two names, and the new path of a rename or ''.

    Different names after the prefixes `a/` and `b/` are a rename. Without prefixes (`diff -u x.py.orig x.py`) they are
    one file: the name without the suffix of a backup, the one that is the end of the other, else the old one.
    """
    if DEV_NULL in (old, new):
        side, name = ("a/", old) if new == DEV_NULL else ("b/", new)
        return name.removeprefix(side), ""
    if old == new:
        return old, ""
    for left, right in _PREFIXES:
        if old.startswith(left) and new.startswith(right):
            one, other = old[2:], new[2:]
            if one == other:
                return one, ""
            if left == "a/":
                return one, other
    if old.removeprefix("a/") == new.removeprefix("b/"):
        return new.removeprefix("b/"), ""
    if any(old == new + suffix for suffix in _BACKUPS) or old.endswith("/" + new):
        return new, ""
    return old, ""


def may_name_files(old: str, new: str) -> bool:
    """Return whether the texts after `--- ` and `+++ ` may be file names: equal, or both with a suffix or folder."""
    names = parse_name(old), parse_name(new)
    if DEV_NULL in names or names[0] == names[1] or "\t" in old + new:
        return True
    return all(re.fullmatch(r"\S*[\w-][./\\]\w\S*", name) for name in names)


def parse_git_names(line: str) -> tuple[str, str]:
    """Return the two names of a `diff --git` line, prefixes included; two empty names where they cannot be found.

    Names with spaces are not quoted: then the split is right that leaves two names equal after their prefixes.
    """
    whole = _GIT_HEADER.fullmatch(line.rstrip("\r"))
    if whole is None or len(line) > _MAX_HEADER_CHARS:
        return "", ""
    if whole[1].startswith('"') or whole[2].startswith('"') or line.count(" ") == 3:
        return parse_name(whole[1]), parse_name(whole[2])
    rest = line[len("diff --git ") :].rstrip("\r")
    for at, char in enumerate(rest):
        old, new = rest[:at], rest[at + 1 :]
        if char == " " and (old == new or old.partition("/")[2] == new.partition("/")[2] != ""):
            return old, new
    return "", ""


def _unquote(quoted: str) -> str:
    r"""Undo C quoting; octal escapes are bytes of UTF-8 ('\303\274' is one letter)."""
    octets = bytearray()
    at = 0
    for escape in _ESCAPE.finditer(quoted):
        octets += quoted[at : escape.start()].encode()
        code = escape[1]
        octets += bytes([int(code, 8) & 0xFF]) if code[0].isdigit() else _NAMED[code].encode()
        at = escape.end()
    return (octets + quoted[at:].encode()).decode("utf-8", "replace")


_COUNTS = "Give the hunk a header with the right counts: '@@ -start,count +start,count @@'."


def find_hunk_end(
    lines: Sequence[str], header: Header, start: int, names_above: tuple[str, str] | None
) -> tuple[int, bool]:
    """Return the line after a hunk whose lines begin at `start`, and whether the counts of its header are right.

    `names_above` are the headers of the file that the hunk belongs to. Raises `EditSyntaxError`.
    """
    end = _find_end_by_counts(lines, header, start, names_above)
    if end is not None:
        return end, True
    end = _find_end_by_looks(lines, start, names_above)
    _refuse_unsigned(lines, header, start, end)
    return end, False


def _find_end_by_counts(
    lines: Sequence[str], header: Header, start: int, names_above: tuple[str, str] | None
) -> int | None:
    """Return the line after a hunk whose lines are as many as its header says, else None."""
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
    if old or new or (at - start > 2 and _holds_header(lines, at, names_above)):
        return None
    while at < len(lines) and lines[at].startswith("\\ "):
        at += 1
    return None if _has_more_lines(lines, at) else at


def _holds_header(lines: Sequence[str], end: int, names_above: tuple[str, str] | None) -> bool:
    """Return whether the last two lines are the header of the next file instead (both counts are one too large)."""
    if not is_name_pair(lines, end - 2) or end == len(lines) or not lines[end].startswith("@@"):
        return False
    headers = lines[end - 2][4:], lines[end - 1][4:]
    return headers != names_above and _are_one_file(parse_name(headers[0]), parse_name(headers[1]))


def _has_more_lines(lines: Sequence[str], at: int) -> bool:
    """Return whether lines of a hunk follow although its counts are used up."""
    while at < len(lines) and is_blank(lines[at]):
        at += 1
    if at == len(lines) or lines[at][:1] not in {" ", "+", "-"} or is_name_pair(lines, at):
        return False
    return not is_signature(lines[at])


def _refuse_unsigned(lines: Sequence[str], header: Header, start: int, end: int) -> None:
    """Refuse lines after a hunk that lack their '+': they are directly below it, or make its counts right."""
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


def _find_end_by_looks(lines: Sequence[str], start: int, names_above: tuple[str, str] | None) -> int:
    """Return the line after the last one that can belong to a hunk whose header has no right counts."""
    at = start
    while at < len(lines) and not _closes(lines, at, names_above):
        line = lines[at]
        if line and line[0] not in " +-" and (not line.startswith("\\ ") or at == start):
            if _changes_follow(lines, at, names_above):
                raise stray_line_error(lines, at)
            break
        at += 1
    while at > start and not lines[at - 1]:
        at -= 1
    return at


def _closes(lines: Sequence[str], at: int, names_above: tuple[str, str] | None) -> bool:
    """Return whether a hunk ends above a line; raises `EditSyntaxError` where that cannot be decided.

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
