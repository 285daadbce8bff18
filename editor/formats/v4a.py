"""Parses V4A patches, as OpenAI's models write them for apply_patch.

    *** Begin Patch
    *** Update File: path            or `*** Add File: path` with '+' lines, `*** Delete File: path`
    *** Move to: new path            optional
    @@ class A                       optional: lines that are above, outermost first; a bare `@@` separates two hunks
     kept line
    -removed line
    +added line
    *** End of File                  optional: the lines above are the last ones
    *** End Patch

Markers may have blanks around them; a heredoc, a fence and talk around the envelope are skipped. Without an
envelope a patch begins with one of the file markers, or with `@@` if one file is implied. A missing `*** End
Patch` is an error: the rest of the patch may be missing too. Grammar: openai/codex, codex-rs/apply-patch/src/parser.rs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from editor.errors import EditSyntaxError
from editor.formats.answers import join_prose
from editor.formats.markup import refuse_strays
from editor.types import Hint, ParsedEdit, Replacement

_BEGIN, _END, _END_OF_FILE = "*** Begin Patch", "*** End Patch", "*** End of File"
_FILE = re.compile(r"\*\*\* (Add|Delete|Update) File: *(.*)")
_MOVE = re.compile(r"\*\*\* Move to: *(.*)")
_NUMBERS = re.compile(r"-(\d{1,18})(?:,\d+)? \+\d+(?:,\d+)?(?: @@ ?(.*))?")
_FENCE = re.compile(r"(`{3,}|~{3,})[\w-]*\s*")
_MAX_SCOPES = 50
_HOW = (
    "Write '*** Begin Patch', for each file '*** Update File: path' (or Add, Delete), hunks that begin with '@@' and "
    "have ' ', '-' or '+' before every line, and '*** End Patch'."
)


def looks_like(edit: str) -> bool:
    """Return whether an edit is a V4A patch: it has the first line of an envelope, or begins with a file marker."""
    lines = [line.strip() for line in edit.split("\n")]
    if _BEGIN in lines:
        return True
    first = next((line for line in lines if line and not _FENCE.fullmatch(line)), "")
    return _FILE.fullmatch(first) is not None


def parse_files(edit: str) -> tuple[ParsedEdit, ...]:
    """Return the edit of each file, in the patch's order; raises `EditSyntaxError`."""
    lines = edit.split("\n")
    if all(line.endswith("\r") for line in lines if line):
        lines = [line.removesuffix("\r") for line in lines]
    bodies = _find_bodies(lines)
    edits = [edit for first, end in bodies for edit in _Reader(lines, first, end).read_edits()]
    if not edits:
        raise EditSyntaxError("empty_edit", "The patch names no file and has no hunk.", _HOW)
    prose = _join_prose(lines, bodies)
    return tuple(replace(edit, prose=prose) for edit in edits)


def _join_prose(lines: list[str], bodies: list[tuple[int, int]]) -> str:
    """Return the talk outside of the envelopes; raises `EditSyntaxError` if a part of an edit is there."""
    read = {at for first, end in bodies for at in range(first - 1, end + 1)}
    outside = [at for at in range(len(lines)) if at not in read and lines[at].strip() not in (_BEGIN, _END)]
    refuse_strays(lines, outside, "the patch")
    ends = [at for at in range(bodies[-1][1] + 1, len(lines)) if lines[at].strip() == _END]
    behind = next((at for at in outside if ends and bodies[-1][1] < at < ends[-1] and lines[at].strip()), None)
    if behind is not None:
        raise EditSyntaxError(
            "malformed", f"Line {behind + 1} of the patch stands behind '{_END}', and above a second one.", _HOW
        )
    return join_prose(lines, outside)


def _find_bodies(lines: list[str]) -> list[tuple[int, int]]:
    """Return the ranges between the markers of all envelopes; if there is none, all lines without a fence."""
    bodies: list[tuple[int, int]] = []
    at = 0
    while at < len(lines):
        if lines[at].strip() == _BEGIN:
            end = _find_envelope_end(lines, at + 1)
            bodies.append((at + 1, end))
            at = end
        at += 1
    return bodies or [_find_bare_body(lines)]


def _find_envelope_end(lines: list[str], start: int) -> int:
    """Return the end marker's line: the first at column 0, else the last (' *** End Patch' may be a kept line)."""
    ends = [at for at in range(start, len(lines)) if lines[at].strip() == _END]
    if not ends:
        raise EditSyntaxError(
            "malformed",
            f"The patch of line {start} has no '{_END}' line; its end may be missing.",
            f"Send the whole patch again, and end it with '{_END}'.",
        )
    return next((at for at in ends if lines[at].startswith("*")), ends[-1])


def _find_bare_body(lines: list[str]) -> tuple[int, int]:
    first, end = 0, len(lines)
    while first < end and (not lines[first].strip() or _FENCE.fullmatch(lines[first])):
        first += 1
    fenced = first > 0 and _FENCE.fullmatch(lines[first - 1]) is not None
    if fenced:
        end = next((at for at in range(first, end) if _FENCE.fullmatch(lines[at])), end)
    while end > first and not lines[end - 1].strip():
        end -= 1
    return first, end - (end > first and lines[end - 1].strip() == _END)


@dataclass(slots=True)
class _Hunk:
    scopes: tuple[str, ...] = ()
    line: int | None = None
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    at_end: bool = False

    def to_replacement(self) -> Replacement:
        return Replacement(tuple(self.before), tuple(self.after), Hint(self.line, self.scopes, self.at_end))


@dataclass(slots=True)
class _Reader:
    """Parses lines [at, end) of the edit from top to bottom."""

    lines: list[str]
    at: int
    end: int

    def read_edits(self) -> list[ParsedEdit]:
        edits: list[ParsedEdit] = []
        if self.at < self.end and self.lines[self.at].startswith("@@"):
            edits.append(self._read_update(""))
        while self.at < self.end:
            line = self.lines[self.at].strip()
            marker = _FILE.fullmatch(line)
            if not line:
                self.at += 1
                continue
            if marker is None or not marker[2]:
                raise self._line_error(
                    self.at, "is no file marker ('*** Update File: path', '*** Add File: path', ...)"
                )
            self.at += 1
            edits.append(self._read_edit(marker[1], marker[2]))
        return edits

    def _read_edit(self, kind: str, path: str) -> ParsedEdit:
        if kind == "Delete":
            return ParsedEdit("v4a", (), "V4A patch that deletes a file", path, "delete", ordered=True)
        return self._read_addition(path) if kind == "Add" else self._read_update(path)

    def _read_addition(self, path: str) -> ParsedEdit:
        added: list[str] = []
        while self.at < self.end and self.lines[self.at].startswith("+"):
            added.append(self.lines[self.at][1:])
            self.at += 1
        behind = next((at for at in range(self.at, self.end) if self.lines[at].strip()), self.end)
        if behind < self.end and not _FILE.fullmatch(self.lines[behind].strip()):
            at = self.at if self.lines[self.at].strip() else behind
            raise self._line_error(at, "belongs to a new file, but does not begin with '+'")
        self.at = behind
        change = Replacement((), tuple(added))
        return ParsedEdit("v4a", (change,) if added else (), "V4A patch that adds a file", path, "create", ordered=True)

    def _read_update(self, path: str) -> ParsedEdit:
        start = self.at
        move = _MOVE.fullmatch(self.lines[self.at].strip()) if self.at < self.end else None
        self.at += move is not None
        hunks: list[_Hunk] = []
        while self.at < self.end:
            line = self.lines[self.at]
            if not line.strip():
                self.at += 1
            elif _FILE.fullmatch(line.rstrip()) or (hunks and hunks[-1].at_end and _FILE.fullmatch(line.strip())):
                break
            elif line.startswith("@@") or not hunks:
                hunks.append(self._read_hunk())
            else:
                raise self._line_error(self.at, "should begin a hunk with '@@', or have ' ', '-' or '+' before it")
        if not hunks and move is None:
            raise self._line_error(start - 1, "is followed by no hunk")
        count = f"{len(hunks)} hunk{'' if len(hunks) == 1 else 's'}"
        changes = tuple(hunk.to_replacement() for hunk in hunks)
        return ParsedEdit(
            "v4a", changes, f"V4A patch with {count}", path, move_to=move[1] if move else "", ordered=True
        )

    def _read_hunk(self) -> _Hunk:
        hunk = _Hunk()
        while self.at < self.end and self.lines[self.at].startswith("@@"):
            self._read_scope(hunk, self.lines[self.at])
            self.at += 1
        while self.at < self.end and not hunk.at_end:
            line = self.lines[self.at]
            if line.rstrip() == _END_OF_FILE:
                hunk.at_end = True
            elif line[:1] not in {"", " ", "-", "+"}:
                break
            else:
                if line[:1] != "+":
                    hunk.before.append(line[1:])
                if line[:1] != "-":
                    hunk.after.append(line[1:])
            self.at += 1
        if not hunk.before and not hunk.after:
            raise self._line_error(
                min(self.at, self.end - 1), "stands where a hunk should have lines with ' ', '-' or '+'"
            )
        return hunk

    def _read_scope(self, hunk: _Hunk, line: str) -> None:
        text = line[2:].removeprefix(" ").rstrip()
        numbers = _NUMBERS.fullmatch(text)
        if numbers:
            hunk.line = max(0, int(numbers[1]) - 1)
            text = numbers[2] or ""
        text = text.removesuffix(" @@")
        if len(hunk.scopes) == _MAX_SCOPES:
            raise self._line_error(self.at, f"is one of more than {_MAX_SCOPES} scopes of a hunk")
        if text.strip(" .@"):
            hunk.scopes = (*hunk.scopes, text)

    def _line_error(self, at: int, what: str) -> EditSyntaxError:
        line = self.lines[at]
        shown = line if len(line) <= 60 else line[:57] + "..."
        return EditSyntaxError("malformed", f"Line {at + 1} of the patch ('{shown}') {what}.", _HOW)
