"""A unified diff read line by line into its files and their hunks."""

from __future__ import annotations

from dataclasses import dataclass, field

from editor.errors import EditSyntaxError
from editor.formats.diff_extents import hunk_end
from editor.formats.diff_hunks import Header, Hunk, header_of, hunk_of
from editor.formats.diff_lines import (
    FENCE,
    HOW,
    is_blank,
    is_diff_fence,
    is_name_pair,
    is_signature,
    is_signed,
    line_error,
    no_hunk_line,
)
from editor.formats.diff_names import git_header_names, name_in

_SPECIAL_MODES = {"120000": "symbolic link", "160000": "submodule"}


@dataclass(slots=True)
class FileDiff:
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
    hunks: list[Hunk] = field(default_factory=list)

    @property
    def is_told(self) -> bool:
        """Tell whether there is more than an `Index:` line, which also stands above changes of other kinds."""
        return not self.index_name or self.has_names or bool(self.hunks)

    @property
    def has_names(self) -> bool:
        """Tell whether a `---` and a `+++` line have been read."""
        return bool(self.old_header)


@dataclass(slots=True)
class DiffReader:
    """Reads the lines of a diff from top to bottom; `at` is the next line.

    `left_at` is the line of prose that ended a hunk whose counts did not say so; a '+' or '-' line below it would mean
    that it was a line of the hunk. `outside` are the lines of prose.
    """

    lines: list[str]
    at: int = 0
    left_at: int | None = None
    read: list[FileDiff] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)

    def files(self) -> list[FileDiff]:
        """Return what the diff says of each file, in its order; raises `EditSyntaxError`."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("diff --git "):
                self._git_header()
            elif line.startswith("Index: "):
                self._start(FileDiff(self.at + 1, index_name=line.removeprefix("Index: ").rstrip()))
                self.at += 1
            elif is_name_pair(self.lines, self.at):
                self._names()
            elif line.startswith("@@@"):
                raise self._error(self.at, "is of a combined diff (of a merge)", "Send a diff against one version.")
            elif line.startswith("@@"):
                self._hunk(header_of(line), self.at + 1)
            else:
                self._outside(line)
        return [file for file in self.read if file.is_told]

    def _start(self, file: FileDiff) -> FileDiff:
        self.left_at = None
        self.read.append(file)
        return file

    def _git_header(self) -> None:
        file = self._start(FileDiff(self.at + 1, git_names=git_header_names(self.lines[self.at])))
        self.at += 1
        while self.at < len(self.lines) and self._extended_header(file, self.lines[self.at]):
            self.at += 1

    def _extended_header(self, file: FileDiff, line: str) -> bool:
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
            self._start(FileDiff(self.at + 1))
        file = self.read[-1]
        file.old_header, file.new_header = self.lines[self.at][4:], self.lines[self.at + 1][4:]
        self.at += 2
        if self.at < len(self.lines) and self.lines[self.at][:1] in {" ", "+", "-"}:
            self._hunk(Header(None, None, ""), self.at)

    def _outside(self, line: str) -> None:
        """Pass over talk; a changed line among it belongs to a hunk that was left too early."""
        if line.startswith(("Binary files ", "GIT binary patch")) and self.read:
            raise self._error(self.at, "is of a binary file", "Leave binary files out; only text can be edited.")
        if line.startswith("***************"):
            raise self._error(self.at, "is of a context diff", "Send a unified diff (`diff -u`).")
        if FENCE.fullmatch(line):
            self.left_at = None
        if self.left_at is not None and line[:1] in {"+", "-"}:
            raise no_hunk_line(self.lines, self.left_at)
        self.outside.append(self.at)
        self.at += 1
        if is_diff_fence(line) and is_signed(self.lines, self.at):
            self._hunk(Header(None, None, ""), self.at)

    def _hunk(self, header: Header, start: int) -> None:
        names = (self.read[-1].old_header, self.read[-1].new_header) if self.read else None
        end, counted = hunk_end(self.lines, header, start, names)
        body = self.lines[start:end]
        if not any(line.strip() for line in body):
            raise self._error(start - 1, "opens a hunk without any line", HOW)
        if not self.read:
            self._start(FileDiff(start))
        beside = end < len(self.lines) and not is_blank(self.lines[end]) and not is_signature(self.lines[end])
        self.left_at = end if beside else None
        self.read[-1].hunks.append(hunk_of(header, body, counted))
        self.at = end

    def _error(self, at: int, what: str, how: str) -> EditSyntaxError:
        return line_error(self.lines, at, what, how)
