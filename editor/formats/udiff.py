r"""Unified diffs: of git, hg, svn and plain `diff -u`, and as models write them.

Models write wrong counts and line numbers, `@@ ... @@` or a bare `@@`, no headers, blank context lines without their
space, a fence and talk around it all. So the lines decide, not the counts: counts that agree with the lines settle
where a hunk ends (and that `--- x` is a removed line `-- x`); otherwise it goes on to the next header, hunk, fence or
prose. Line numbers become hints. What cannot be read for certain is an error that names the line.

The library `unidiff` raises on wrong counts and takes a bare `@@` for talk, so it cannot read what models write; it is
the tests' oracle for the diffs that tools write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from editor.errors import EditSyntaxError
from editor.formats.diff_names import DEV_NULL, git_header_names, is_absent, name_in, path_and_move
from editor.types import Action, Hint, ParsedEdit, Replacement

_NUMBERED = re.compile(r"@@+ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@+(?P<heading>.*)")
_UNNUMBERED = re.compile(r"@@(?:(?P<inside>.*?)\s*@@)?(?P<heading>.*)")
_NO_CODE = re.compile(r"[\s.,+\-\d]*")
_FENCE = re.compile(r"(`{3,}|~{3,})[\w-]*\s*")
_SIGNATURE = re.compile(r"-- ?|-{3,}")
_VERSION = re.compile(r"\d+(\.\w+)+.*")
_MAX_TALK_LINES = 60
_MAX_TALK_LINES_UNNUMBERED = 4
_SPECIAL_MODES = {"120000": "symbolic link", "160000": "submodule"}


def looks_like(edit: str) -> bool:
    """Tell whether an edit is a unified diff: headers or a hunk, with no more than talk above."""
    lines = edit.split("\n")
    talk = 0
    for at, line in enumerate(lines):
        if line.startswith("diff --git ") or (_is_name_pair(lines, at) and _opens_body(lines, at + 2)):
            return True
        if line.startswith("@@") and _opens_hunk(lines, at, talk):
            return True
        talk += bool(line.strip()) and not _FENCE.fullmatch(line)
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
    files = _Reader(lines).files()
    if not files:
        raise _malformed("The edit has no line that begins with '@@' and no file header of a unified diff.")
    return tuple(_parsed(file) for file in files)


@dataclass(slots=True)
class _File:
    """What has been read of one file of the diff; `line` is the number of its first line, from 1."""

    line: int
    old_header: str = ""
    new_header: str = ""
    index_name: str = ""
    git_names: tuple[str, str] = ("", "")
    renamed: tuple[str, str] = ("", "")
    created: bool = False
    deleted: bool = False
    mode_changed: bool = False
    hunks: list[_Hunk] = field(default_factory=list)

    @property
    def is_told(self) -> bool:
        """Tell whether there is more than an `Index:` line, which also stands above changes of other kinds."""
        return not self.index_name or self.has_names or bool(self.hunks)

    @property
    def has_names(self) -> bool:
        return bool(self.old_header)


@dataclass(frozen=True, slots=True)
class _Header:
    """One `@@` line: the ranges [start, count) of both sides, None where it has no numbers."""

    old: tuple[int, int] | None
    new: tuple[int, int] | None
    scope: str


@dataclass(frozen=True, slots=True)
class _Hunk:
    change: Replacement
    header: _Header
    final_newline: bool | None


@dataclass(slots=True)
class _Reader:
    """Reads the lines of a diff from top to bottom; `at` is the next line.

    `left_at` is the line of prose that ended a hunk whose counts did not say so; a '+' or '-' line below it would mean
    that it was a line of the hunk.
    """

    lines: list[str]
    at: int = 0
    left_at: int | None = None
    read: list[_File] = field(default_factory=list)

    def files(self) -> list[_File]:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                self._git_header()
            elif line.startswith("Index: "):
                self._start(_File(self.at + 1, index_name=line.removeprefix("Index: ").rstrip()))
                self.at += 1
            elif _is_name_pair(self.lines, self.at):
                self._names()
            elif line.startswith("@@@"):
                raise self._error(self.at, "is of a combined diff (of a merge)", "Send a diff against one version.")
            elif line.startswith("@@"):
                self._hunk(_header(line), self.at + 1)
            else:
                self._outside(line)
        return [file for file in self.read if file.is_told]

    def _start(self, file: _File) -> _File:
        self.left_at = None
        self.read.append(file)
        return file

    def _git_header(self) -> None:
        file = self._start(_File(self.at + 1, git_names=git_header_names(self.lines[self.at])))
        self.at += 1
        while self.at < len(self.lines) and self._extended_header(file, self.lines[self.at]):
            self.at += 1

    def _extended_header(self, file: _File, line: str) -> bool:
        """Take in one line between `diff --git` and `---`; False if it is none."""
        word, _, rest = line.rstrip("\r").partition(" ")
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise self._error(self.at, "is of a binary file", "Leave binary files out; only text can be edited.")
        if line.startswith(("copy from ", "copy to ")):
            raise self._error(self.at, "copies a file", "Send the copy as a new file ('--- /dev/null').")
        if line.startswith(("rename from ", "rename to ")):
            name = name_in(rest.partition(" ")[2])
            file.renamed = (name, file.renamed[1]) if rest.startswith("from") else (file.renamed[0], name)
        elif line.startswith(("new file mode ", "deleted file mode ", "old mode ", "new mode ")):
            mode = rest.split(" ")[-1]
            if mode in _SPECIAL_MODES:
                raise self._error(self.at, f"is of a {_SPECIAL_MODES[mode]}", "Leave it out; only text can be edited.")
            file.created |= word == "new" and rest.startswith("file")
            file.deleted |= word == "deleted"
            file.mode_changed |= rest.startswith("mode")
        elif word not in ("index", "similarity", "dissimilarity"):
            return False
        return True

    def _names(self) -> None:
        if not self.read or self.read[-1].has_names or self.read[-1].hunks:
            self._start(_File(self.at + 1))
        file = self.read[-1]
        file.old_header, file.new_header = self.lines[self.at][4:], self.lines[self.at + 1][4:]
        self.at += 2
        if self.at < len(self.lines) and self.lines[self.at][:1] in {" ", "+", "-"}:
            self._hunk(_Header(None, None, ""), self.at)

    def _outside(self, line: str) -> None:
        """Pass over talk; a changed line among it belongs to a hunk that was left too early."""
        if line.startswith(("Binary files ", "GIT binary patch")) and self.read:
            raise self._error(self.at, "is of a binary file", "Leave binary files out; only text can be edited.")
        if line.startswith("***************"):
            raise self._error(self.at, "is of a context diff", "Send a unified diff (`diff -u`).")
        if _FENCE.fullmatch(line):
            self.left_at = None
        if self.left_at is not None and line[:1] in {"+", "-"}:
            raise self._no_hunk_line(self.left_at)
        self.at += 1

    def _hunk(self, header: _Header, start: int) -> None:
        end = self._end_by_counts(header, start)
        counted = end is not None
        if end is None:
            end = self._end_by_looks(start)
        body = self.lines[start:end]
        if not any(line.strip() for line in body):
            raise self._error(start - 1, "opens a hunk without any line", _HOW)
        if not self.read:
            self._start(_File(start))
        beside = end < len(self.lines) and not _is_blank(self.lines[end]) and not _SIGNATURE.fullmatch(self.lines[end])
        self.left_at = end if beside else None
        self.read[-1].hunks.append(_hunk(header, body, counted))
        self.at = end

    def _end_by_counts(self, header: _Header, start: int) -> int | None:
        """Return the line behind a hunk whose lines are as many as its header says, else None."""
        if header.old is None or header.new is None:
            return None
        old, new, at = header.old[1], header.new[1], start
        while old > 0 or new > 0:
            sign = self.lines[at][:1] or " " if at < len(self.lines) else "end"
            if sign not in {" ", "+", "-", "\\"} or (sign == "\\" and at == start):
                return None
            old -= sign in " -"
            new -= sign in " +"
            at += 1
        if old or new or (at - start > 2 and self._took_header(at)):
            return None
        while at < len(self.lines) and self.lines[at].startswith("\\ "):
            at += 1
        return None if self._goes_on(at) else at

    def _took_header(self, end: int) -> bool:
        """Tell whether the last two lines are rather the header of the next file (both counts one too large)."""
        if not _is_name_pair(self.lines, end - 2) or end == len(self.lines) or not self.lines[end].startswith("@@"):
            return False
        headers = self.lines[end - 2][4:], self.lines[end - 1][4:]
        if self.read and headers == (self.read[-1].old_header, self.read[-1].new_header):
            return False
        return _are_one_file(name_in(headers[0]), name_in(headers[1]))

    def _goes_on(self, at: int) -> bool:
        """Tell whether lines of a hunk follow although its counts are used up."""
        while at < len(self.lines) and _is_blank(self.lines[at]):
            at += 1
        if at == len(self.lines) or self.lines[at][:1] not in {" ", "+", "-"} or _is_name_pair(self.lines, at):
            return False
        return _SIGNATURE.fullmatch(self.lines[at]) is None

    def _end_by_looks(self, start: int) -> int:
        """Return the line behind the last one that can belong to a hunk whose header has no right counts."""
        at = start
        while at < len(self.lines) and not self._closes_hunk(at):
            line = self.lines[at]
            if line and line[0] not in " +-" and (not line.startswith("\\ ") or at == start):
                if self._changes_follow(at):
                    raise self._no_hunk_line(at)
                break
            at += 1
        while at > start and not self.lines[at - 1]:
            at -= 1
        return at

    def _closes_hunk(self, at: int) -> bool:
        line = self.lines[at]
        if line.startswith(("@@", "diff --git ", "Index: ", "*** End Patch")) or _FENCE.fullmatch(line):
            return True
        if line == "-- " and at + 1 < len(self.lines) and _VERSION.fullmatch(self.lines[at + 1]):
            return True
        return _is_name_pair(self.lines, at) and at + 2 < len(self.lines) and self.lines[at + 2].startswith("@@")

    def _changes_follow(self, at: int) -> bool:
        while at < len(self.lines) and not self._closes_hunk(at):
            if self.lines[at][:1] in {"+", "-"}:
                return True
            at += 1
        return False

    def _no_hunk_line(self, at: int) -> EditSyntaxError:
        return self._error(at, "stands among the lines of a hunk, but begins with none of ' ', '+', '-'", _HOW)

    def _error(self, at: int, what: str, how: str) -> EditSyntaxError:
        line = self.lines[at] if at < len(self.lines) else ""
        shown = line if len(line) <= 60 else line[:57] + "..."
        return EditSyntaxError("malformed", f"Line {at + 1} of the diff ('{shown}') {what}.", how)


_HOW = (
    "Write each hunk as a line '@@ -start,count +start,count @@', then every line with ' ' (kept), '-' (removed) or "
    "'+' (added) before it, blank lines too."
)


def _malformed(message: str) -> EditSyntaxError:
    return EditSyntaxError("malformed", message, _HOW)


def _is_blank(line: str) -> bool:
    return not line.strip()


def _is_name_pair(lines: list[str], at: int) -> bool:
    """Tell whether a `--- ` and a `+++ ` line stand here, each with a name."""
    if at < 0 or at + 1 >= len(lines):
        return False
    old, new = lines[at], lines[at + 1]
    return old.startswith("--- ") and new.startswith("+++ ") and not _is_blank(old[4:]) and not _is_blank(new[4:])


def _are_one_file(old: str, new: str) -> bool:
    same = old.removeprefix("a/") == new.removeprefix("b/")
    return DEV_NULL in (old, new) or same or (old.startswith("a/") and new.startswith("b/"))


def _opens_body(lines: list[str], at: int) -> bool:
    return at < len(lines) and (lines[at].startswith("@@") or lines[at][:1] in {" ", "+", "-"})


def _opens_hunk(lines: list[str], at: int, talk: int) -> bool:
    below = next((line for line in lines[at + 1 :] if line), "")
    if below[:1] not in {" ", "+", "-"}:
        return False
    if _NUMBERED.fullmatch(lines[at].rstrip("\r")):
        return True
    return talk <= _MAX_TALK_LINES_UNNUMBERED and any(line[:1] in {"+", "-"} for line in lines[at + 1 : at + 60])


def _header(line: str) -> _Header:
    line = line.rstrip("\r")
    numbered = _NUMBERED.fullmatch(line)
    if numbered:
        old = (int(numbered[1]), int(numbered[2] or 1))
        new = (int(numbered[3]), int(numbered[4] or 1))
        return _Header(old, new, numbered["heading"].strip())
    unnumbered = _UNNUMBERED.fullmatch(line)
    assert unnumbered is not None
    named = [part.strip() for part in (unnumbered["inside"] or "", unnumbered["heading"])]
    return _Header(None, None, next((part for part in named if not _NO_CODE.fullmatch(part)), ""))


def _hunk(header: _Header, body: list[str], counted: bool) -> _Hunk:
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
    hint = Hint(_line_hint(header, counted), (header.scope,) if header.scope else (), old_is_open or new_is_open)
    final_newline = None if old_is_open == new_is_open else old_is_open
    return _Hunk(Replacement(tuple(before), tuple(after), hint), header, final_newline)


def _line_hint(header: _Header, counted: bool) -> int | None:
    """Return the line index that a header gives; '-1,N' with wrong counts is a form filled in, not a place."""
    if header.old is None or (not counted and header.old[0] <= 1):
        return None
    start, count = header.old
    return start - 1 if count and start else start


def _parsed(file: _File) -> ParsedEdit:
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


def _action(file: _File) -> Action:
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


def _path_and_move(file: _File, action: Action) -> tuple[str, str]:
    if file.has_names:
        old, new = name_in(file.old_header), name_in(file.new_header)
        path, move_to = path_and_move(old, new)
        return (path, move_to) if all(file.renamed) or action == "update" else (path, "")
    path, move_to = path_and_move(*file.git_names) if file.git_names[0] else (file.index_name, "")
    if all(file.renamed) and not (path.endswith(file.renamed[0]) and move_to.endswith(file.renamed[1])):
        return file.renamed
    return path, move_to if action == "update" else ""


def _created(file: _File, changes: tuple[Replacement, ...]) -> tuple[Replacement, ...]:
    if len(changes) > 1 or any(change.before for change in changes):
        raise EditSyntaxError(
            "malformed",
            f"The diff of line {file.line} creates a file, but holds lines of an old one or several hunks.",
            "Send a new file as '--- /dev/null', '+++ b/path', '@@ -0,0 +1,N @@' and lines that all begin with '+'.",
        )
    return tuple(Replacement((), change.after) for change in changes)


def _detected(file: _File) -> str:
    kind = "git diff" if file.git_names != ("", "") else "unified diff"
    count = len(file.hunks)
    mode = ", its mode change left out" if file.mode_changed else ""
    return f"{kind} with {count} hunk{'' if count == 1 else 's'}{mode}"
