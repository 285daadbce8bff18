"""Parses unified diffs of git, hg, svn, `diff -u`, and as models write them.

Models write wrong counts and line numbers, `@@ ... @@` or a bare `@@`, no headers, blank context lines without their
space, a fence and talk around it all. So the lines decide, not the counts: counts that agree with the lines say
where a hunk ends (and that `--- x` is a removed line `-- x`); otherwise it goes on to the next header, hunk, fence or
prose. Line numbers become hints. A line that cannot be parsed for certain is an error that names it.

The library `unidiff` raises on wrong counts and takes a bare `@@` for talk, so it cannot read what models write; it is
the tests' oracle for the diffs that tools write.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from editor.errors import EditSyntaxError
from editor.formats.answers import join_prose
from editor.formats.diff_syntax import (
    DEV_NULL,
    FENCE,
    HOW,
    NUMBERED,
    Header,
    Hunk,
    build_hunk,
    find_hunk_end,
    is_absent,
    is_blank,
    is_diff_fence,
    is_name_pair,
    is_signature,
    is_signed,
    line_error,
    parse_git_names,
    parse_header,
    parse_name,
    resolve_names,
    stray_line_error,
)
from editor.formats.markup import refuse_strays
from editor.types import Action, ParsedEdit, Replacement

_SPECIAL_MODES = {"120000": "symbolic link", "160000": "submodule"}


@dataclass(slots=True)
class FileDiff:
    """The parsed diff of one file; `line` is the number of its first line, from 1."""

    line: int
    old_header: str = ""
    new_header: str = ""
    index_name: str = ""
    git_names: tuple[str, str] = ("", "")
    renamed: tuple[str, str] = ("", "")
    created: bool = False
    deleted: bool = False
    mode_changed: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def has_changes(self) -> bool:
        """Return whether there is more than an `Index:` line, which precedes changes of other kinds as well."""
        return not self.index_name or self.has_names or bool(self.hunks)

    @property
    def has_names(self) -> bool:
        """Return whether a `---` and a `+++` line have been read."""
        return bool(self.old_header)


@dataclass(slots=True)
class DiffReader:
    """Parses the lines of a diff from top to bottom; `at` is the next line.

    `left_at` is the line of prose that ended a hunk before its counts did; a '+' or '-' line below it would mean that
    it belongs to the hunk. `outside` are the lines of prose.
    """

    lines: list[str]
    at: int = 0
    left_at: int | None = None
    read: list[FileDiff] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)

    def read_files(self) -> list[FileDiff]:
        """Return the diffs of all files in order; raises `EditSyntaxError`."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                self._read_git_header()
            elif line.startswith("Index: "):
                self._start(FileDiff(self.at + 1, index_name=line.removeprefix("Index: ").rstrip()))
                self.at += 1
            elif is_name_pair(self.lines, self.at):
                self._read_names()
            elif line.startswith("@@@"):
                raise self._line_error(
                    self.at, "is of a combined diff (of a merge)", "Send a diff against one version."
                )
            elif line.startswith("@@"):
                self._read_hunk(parse_header(line), self.at + 1)
            else:
                self._pass_over_talk(line)
        return [file for file in self.read if file.has_changes]

    def _start(self, file: FileDiff) -> FileDiff:
        self.left_at = None
        self.read.append(file)
        return file

    def _read_git_header(self) -> None:
        file = self._start(FileDiff(self.at + 1, git_names=parse_git_names(self.lines[self.at])))
        self.at += 1
        while self.at < len(self.lines) and self._read_extended_header(file, self.lines[self.at]):
            self.at += 1

    def _read_extended_header(self, file: FileDiff, line: str) -> bool:
        """Parse one line between `diff --git` and `---`; return False if it is none."""
        word, _, rest = line.rstrip("\r").partition(" ")
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise self._line_error(self.at, "is of a binary file", "Leave binary files out; only text can be edited.")
        if line.startswith(("copy from ", "copy to ")):
            raise self._line_error(self.at, "copies a file", "Send the copy as a new file ('--- /dev/null').")
        if line.startswith(("rename from ", "rename to ")):
            name = parse_name(rest.partition(" ")[2])
            file.renamed = (name, file.renamed[1]) if rest.startswith("from") else (file.renamed[0], name)
        elif line.startswith(("new file mode ", "deleted file mode ", "old mode ", "new mode ")):
            mode = rest.split(" ")[-1]
            if mode in _SPECIAL_MODES:
                raise self._line_error(
                    self.at, f"is of a {_SPECIAL_MODES[mode]}", "Leave it out; only text can be edited."
                )
            file.created |= word == "new" and rest.startswith("file")
            file.deleted |= word == "deleted"
            file.mode_changed |= rest.startswith("mode")
        elif word not in ("index", "similarity", "dissimilarity"):
            return False
        return True

    def _read_names(self) -> None:
        if not self.read or self.read[-1].has_names or self.read[-1].hunks:
            self._start(FileDiff(self.at + 1))
        file = self.read[-1]
        file.old_header, file.new_header = self.lines[self.at][4:], self.lines[self.at + 1][4:]
        self.at += 2
        if self.at < len(self.lines) and self.lines[self.at][:1] in {" ", "+", "-"}:
            self._read_hunk(Header(None, None, ""), self.at)

    def _pass_over_talk(self, line: str) -> None:
        """Skip talk; a changed line in it would belong to a hunk that was left too early, and is an error."""
        if line.startswith(("Binary files ", "GIT binary patch")) and self.read:
            raise self._line_error(self.at, "is of a binary file", "Leave binary files out; only text can be edited.")
        if line.startswith("***************"):
            raise self._line_error(self.at, "is of a context diff", "Send a unified diff (`diff -u`).")
        if FENCE.fullmatch(line):
            self.left_at = None
        if self.left_at is not None and line[:1] in {"+", "-"}:
            raise stray_line_error(self.lines, self.left_at)
        self.outside.append(self.at)
        self.at += 1
        if is_diff_fence(line) and is_signed(self.lines, self.at):
            self._read_hunk(Header(None, None, ""), self.at)

    def _read_hunk(self, header: Header, start: int) -> None:
        names = (self.read[-1].old_header, self.read[-1].new_header) if self.read else None
        end, counted = find_hunk_end(self.lines, header, start, names)
        body = self.lines[start:end]
        if not any(line.strip() for line in body):
            raise self._line_error(start - 1, "opens a hunk without any line", HOW)
        if not self.read:
            self._start(FileDiff(start))
        beside = end < len(self.lines) and not is_blank(self.lines[end]) and not is_signature(self.lines[end])
        self.left_at = end if beside else None
        self.read[-1].hunks.append(build_hunk(header, body, counted))
        self.at = end

    def _line_error(self, at: int, what: str, how: str) -> EditSyntaxError:
        return line_error(self.lines, at, what, how)


_MAX_TALK_LINES = 60
_MAX_TALK_LINES_UNNUMBERED = 4


def looks_like(edit: str) -> bool:
    """Return whether an edit is a unified diff: headers or a hunk, with no more than talk above."""
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
    files = reader.read_files()
    if not files:
        message = "The edit has no line that begins with '@@' and no file header of a unified diff."
        raise EditSyntaxError("malformed", message, HOW)
    refuse_strays(lines, reader.outside, "the diff")
    prose = join_prose(lines, reader.outside)
    return tuple(replace(_build_edit(file), prose=prose) for file in files)


def _opens_body(lines: list[str], at: int) -> bool:
    return at < len(lines) and (lines[at].startswith("@@") or lines[at][:1] in {" ", "+", "-"})


def _opens_hunk(lines: list[str], at: int, talk: int) -> bool:
    below = next((line for line in lines[at + 1 :] if line), "")
    if below[:1] not in {" ", "+", "-"}:
        return False
    if NUMBERED.fullmatch(lines[at].rstrip("\r")):
        return True
    return talk <= _MAX_TALK_LINES_UNNUMBERED and any(line[:1] in {"+", "-"} for line in lines[at + 1 : at + 60])


def _build_edit(file: FileDiff) -> ParsedEdit:
    action = _find_action(file)
    path, move_to = _find_names(file, action)
    changes = tuple(hunk.change for hunk in file.hunks)
    if action == "create":
        changes = _check_creation(file, changes)
    elif not changes and not move_to and action == "update":
        what = "changes only the mode" if file.mode_changed else "changes nothing"
        raise EditSyntaxError(
            "malformed",
            f"The diff of line {file.line} ('{path}') {what}.",
            "Leave this file out of the diff, or add its hunks.",
        )
    final_newline = next((hunk.final_newline for hunk in reversed(file.hunks) if hunk.final_newline is not None), None)
    return ParsedEdit(
        "udiff", changes, _describe(file), path, action, move_to, ordered=True, final_newline=final_newline
    )


def _find_action(file: FileDiff) -> Action:
    if file.created or parse_name(file.old_header) == DEV_NULL:
        return "create"
    if file.deleted or parse_name(file.new_header) == DEV_NULL:
        return "delete"
    if len(file.hunks) == 1:
        header = file.hunks[0].header
        if header.old == (0, 0) and is_absent(file.old_header):
            return "create"
        if header.new == (0, 0) and is_absent(file.new_header):
            return "delete"
    return "update"


def _find_names(file: FileDiff, action: Action) -> tuple[str, str]:
    if file.has_names:
        old, new = parse_name(file.old_header), parse_name(file.new_header)
        path, move_to = resolve_names(old, new)
        return (path, move_to) if all(file.renamed) or action == "update" else (path, "")
    path, move_to = resolve_names(*file.git_names) if file.git_names[0] else (file.index_name, "")
    if all(file.renamed) and not (path.endswith(file.renamed[0]) and move_to.endswith(file.renamed[1])):
        return file.renamed
    return path, move_to if action == "update" else ""


def _check_creation(file: FileDiff, changes: tuple[Replacement, ...]) -> tuple[Replacement, ...]:
    if len(changes) > 1 or any(change.before for change in changes):
        raise EditSyntaxError(
            "malformed",
            f"The diff of line {file.line} creates a file, but holds lines of an old one or several hunks.",
            "Send a new file as '--- /dev/null', '+++ b/path', '@@ -0,0 +1,N @@' and lines that all begin with '+'.",
        )
    return tuple(Replacement((), change.after) for change in changes)


def _describe(file: FileDiff) -> str:
    kind = "git diff" if file.git_names != ("", "") else "unified diff"
    count = len(file.hunks)
    mode = ", its mode change left out" if file.mode_changed else ""
    return f"{kind} with {count} hunk{'' if count == 1 else 's'}{mode}"
