r"""Parses SEARCH/REPLACE blocks, as aider, Cline and Roo Code have models write them.

    <<<<<<< SEARCH
    :start_line:12
    -------
    12 | old line
    =======
    12 | new line
    >>>>>>> REPLACE

A line of the file that begins like a marker is written with a backslash before it (`\=======`). `:end_line:` is read
and not used, as in Roo's own `multi-search-replace.ts`.

    path/to/file.py                 optional: names the file of this block and of those below without a name
    <<<<<<< SEARCH                  or `------- SEARCH`, `<<<<<<< ORIGINAL`, `<<<<<<< SEARCH path/to/file.py`
    :start_line:12                  optional (Roo), with a line `-------` below: a hint where the lines are
    lines that are in the file
    =======
    lines that should be there
    >>>>>>> REPLACE                 or `+++++++ REPLACE`, `>>>>>>> UPDATED`, `>>>>>>>`

    <old_text line=12>              Zed's spelling of a block
    lines that are in the file
    </old_text>
    <new_text>
    lines that should be there
    </new_text>

    <<<<<<< HEAD                    git's conflict: the first side is in the file, the second should be; read only if
    ...                             the edit holds nothing but such blocks, fences and file names
    =======
    ...
    >>>>>>> any label

Other lines between blocks are talk, unless they look like a part of an edit (`refuse_strays`). Markers are at column 0
and are five to nine characters long, **the three of one block equally long**: so a file that itself holds `=======` (a
merge conflict, a heading) is edited with markers of another length. A second divider or opener of the same length
inside a block is ambiguous and is refused; so is a block without its end, whose REPLACE part may have been cut. Roo's
dialect escapes such lines. HTML escapes are left as they are: a file may hold them (Roo-Code#10804, cline#7698).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from editor.errors import EditSyntaxError
from editor.formats.answers import is_code, join_prose
from editor.formats.markup import find_kind, find_outer_fence, is_fence, is_label, parse_file_name, refuse_strays
from editor.placeholders import is_placeholder
from editor.types import Hint, ParsedEdit, Replacement

_HEADER = re.compile(r"\s*:(?P<which>start|end)_line:\s*(?P<line>\d{1,18})\s*")
_RULE = re.compile(r"-{5,9}\s*")
_ESCAPED = re.compile(r"\\(?=<{7}|={7}|>{7}|-{7}|:start_line:|:end_line:)")
_ESCAPED_MARKER = re.compile(r"\\(<{7}|={7}|>{7})")
_NUMBERED = re.compile(r"\s*(?P<line>\d{1,18})\s+\|(?!\|) ?(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """The dialect of the blocks of one edit; `escapes` says that a backslash before a marker is removed."""

    escapes: bool

    def read(self, before: list[str], after: list[str]) -> Replacement:
        """Return the block with these lines between its markers; raises `EditSyntaxError`."""
        line, before = _split_header(before)
        if not self.escapes and any(map(_ESCAPED_MARKER.match, after)) and not any(map(_ESCAPED_MARKER.match, before)):
            raise EditSyntaxError(
                "malformed",
                "A REPLACE line begins with a backslash and a marker: the backslash may escape it, or be meant.",
                "Use markers of 8 or 9 characters, and write such lines as they shall stand in the file.",
            )
        if self.escapes or any(map(_ESCAPED_MARKER.match, before)):
            before, after = _unescape(before), _unescape(after)
        sent = Replacement(tuple(before), tuple(after), Hint(line=line))
        numbered = _strip_numbers(before, after)
        if numbered is None:
            return sent
        first, before, after = numbered
        hint = Hint(line=first if line is None else line)
        return Replacement(tuple(before), tuple(after), hint, verbatim=sent)


def find_dialect(lines: list[str]) -> Dialect:
    """Return the dialect of an edit: it is Roo's if any of its blocks has a line hint."""
    return Dialect(escapes=any(map(_HEADER.fullmatch, lines)))


def _split_header(before: list[str]) -> tuple[int | None, list[str]]:
    """Return the line hint as an index, and the lines below hints and rule; a rule without hints is text."""
    line: int | None = None
    start = 0
    while start < len(before) and (header := _HEADER.fullmatch(before[start])):
        if header["which"] == "start" and int(header["line"]) > 0:
            line = int(header["line"]) - 1
        start += 1
    if 0 < start < len(before) and _RULE.fullmatch(before[start]):
        start += 1
    return line, before[start:]


def _unescape(lines: list[str]) -> list[str]:
    return [_ESCAPED.sub("", line, count=1) if line.startswith("\\") else line for line in lines]


def _strip_numbers(before: list[str], after: list[str]) -> tuple[int, list[str], list[str]] | None:
    """Return the first line index and the lines without numbers, if SEARCH counts up and REPLACE has numbers too."""
    old, new = [_NUMBERED.fullmatch(line) for line in before], [_NUMBERED.fullmatch(line) for line in after]
    if not before or not all(old) or not all(new):
        return None
    numbers = [int(one["line"]) for one in old if one]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[0] < 1:
        return None
    return numbers[0] - 1, [one["text"] for one in old if one], [one["text"] for one in new if one]


_OPENER = re.compile(r"(<{5,9}|-{5,9}) ?(?:SEARCH|ORIGINAL)>?(?:\s+(?P<name>\S+))?\s*", re.IGNORECASE)
_DIVIDER = re.compile(r"(={5,9})\s*")
_CLOSER = re.compile(r"(>{5,9}|\+{5,9}) ?(?:REPLACE|UPDATED)>?(?:\s+(?P<name>\S+))?\s*", re.IGNORECASE)
_BARE_CLOSER = re.compile(r"(>{5,9})\s*")
_OLD_TAG = re.compile(r"<old_text(?:\s+line=\"?(?P<line>\d{1,9})\"?)?\s*>\s*")
_CLOSER_OF = {"<": ">", "-": "+"}
# A file name is at most this many lines above its block, fences counted (aider).
_NAME_REACH = 3
_TITLE = re.compile(r"# \S.*|---\s*")


@dataclass(frozen=True, slots=True)
class _Block:
    """One block: its lines [first, end) in the edit, and the file that is named above it ('' if none is)."""

    replacement: Replacement
    first: int
    end: int
    path: str


_CONFLICT_OPENER = re.compile(r"<{7} (?:HEAD|CURRENT|OURS|LOCAL)\b.*", re.IGNORECASE)
_CONFLICT_CLOSER = re.compile(r">{7} \S.*")
_CONFLICT_BASE = re.compile(r"\|{7}.*")


def read_conflicts(edit: str) -> str:
    """Return an edit that consists of git's conflict blocks as SEARCH/REPLACE blocks; any other edit is unchanged.

    The side of HEAD is what the file holds. A block with the common base, and text outside of the blocks, leave open
    what is meant.
    """
    lines = edit.split("\n")
    if not any(map(_CONFLICT_OPENER.fullmatch, lines)):
        return edit
    read, part = list(lines), "outside"
    for at, line in enumerate(lines):
        if _CONFLICT_OPENER.fullmatch(line) and part == "outside":
            read[at], part = "<<<<<<< SEARCH", "old"
        elif line == "=======" and part == "old":
            part = "new"
        elif _CONFLICT_CLOSER.fullmatch(line) and part == "new":
            read[at], part = ">>>>>>> REPLACE", "outside"
        elif part == "outside":
            if line.strip() and not is_fence(line) and not parse_file_name(line):
                return edit
        elif _CONFLICT_OPENER.fullmatch(line) or _CONFLICT_BASE.fullmatch(line):
            return edit
    return "\n".join(read) if part == "outside" else edit


def find_first_opener(lines: list[str]) -> int | None:
    """Return the first line that opens a SEARCH block, or None."""
    return next((at for at, line in enumerate(lines) if _match_marker(_OPENER, line) or _OLD_TAG.fullmatch(line)), None)


def looks_like(edit: str, path: str = "") -> bool:
    """Return whether an edit is written in blocks, and is not a text that only shows some.

    Such a text has placeholder comments outside its blocks, or is in a fence for Markdown together with other text.
    Or it begins with a title or front matter of Markdown, unless the file is a program and nothing outside is code.
    """
    lines = read_conflicts(edit).split("\n")
    if find_first_opener(lines) is None:
        return False
    outside = _list_outside(lines)
    head = next(line for line in lines if line.strip())
    if _TITLE.fullmatch(head) and not parse_file_name(head):
        is_program = find_kind(path) not in ("markdown", "text", "unknown")
        if not is_program or any(is_code(lines[at]) for at in outside):
            return False
    if any(is_placeholder(lines[at]) and lines[at].strip(" .…") for at in outside):
        return False
    fenced = find_outer_fence(lines, ("md", "markdown"))
    return not any(
        at in fenced and lines[at].strip() and not (is_fence(lines[at]) or parse_file_name(lines[at])) for at in outside
    )


def parse_files(edit: str, path: str = "") -> tuple[ParsedEdit, ...]:
    """Return one edit for every file, in order of first appearance; raises `EditSyntaxError`.

    Every block has to be complete and unambiguous. If a single file is named anywhere, all blocks belong to it. A block
    that is sent twice is read once. `path` is the file that the edit is sent for.
    """
    lines = read_conflicts(edit).split("\n")
    blocks = list(_read_blocks(lines))
    if not blocks:
        raise _syntax_error("The edit holds no SEARCH block.")
    if not any(block.replacement.before or block.replacement.after for block in blocks):
        raise EditSyntaxError(
            "empty_edit",
            "Every SEARCH/REPLACE block of the edit is empty.",
            "Put the lines to find under SEARCH and the lines to write under =======.",
        )
    within = {at for block in blocks for at in range(block.first, block.end)}
    outside = [at for at in range(len(lines)) if at not in within]
    refuse_strays(lines, outside, "the blocks")
    named = list(dict.fromkeys(block.path for block in blocks if block.path))
    if len(named) > 1 and not blocks[0].path:
        raise _syntax_error(f"The first block names no file, but others do: {', '.join(named)}.")
    by_path: dict[str, list[Replacement]] = {}
    name = named[0] if named else ""
    for block in blocks:
        name = block.path or name
        by_path.setdefault(name, []).append(block.replacement)
    prose = join_prose(lines, outside)
    return tuple(_build_edit(name, changes, prose) for name, changes in by_path.items())


def _build_edit(path: str, sent: list[Replacement], prose: str) -> ParsedEdit:
    changes = tuple(dict.fromkeys(sent))
    again = f", {len(sent) - len(changes)} of them sent again" if len(changes) < len(sent) else ""
    detected = f"{len(sent)} SEARCH/REPLACE block{'' if len(sent) == 1 else 's'}{again}"
    return ParsedEdit("search_replace", changes, detected, path, prose=prose)


def _read_blocks(lines: list[str]) -> Iterator[_Block]:
    dialect = find_dialect(lines)
    at = above = 0
    while at < len(lines):
        block = None
        if _match_marker(_OPENER, lines[at]):
            block = _read_block(lines, at, above, dialect)
        elif _OLD_TAG.fullmatch(lines[at]):
            block = _read_tagged_block(lines, at, above)
        elif _match_marker(_CLOSER, lines[at]):
            raise _syntax_error(f"Line {at + 1} of the edit closes a block that was not opened.")
        at += 1
        if block is not None:
            yield block
            at = above = block.end


def _read_block(lines: list[str], opened: int, above: int, dialect: Dialect) -> _Block:
    """Return the block that opens at `opened`; a line between `above` and it may name its file."""
    marker = _match_marker(_OPENER, lines[opened])
    divider, closer = "=" * len(marker), _CLOSER_OF[marker[0]] * len(marker)
    closed = _find_closing_line(lines, opened, marker, closer)
    dividers = [at for at in range(opened + 1, closed) if _match_marker(_DIVIDER, lines[at]) == divider]
    if not dividers:
        raise _syntax_error(f"The block at line {opened + 1} of the edit has no divider line '{divider}'.")
    if len(dividers) > 1:
        where = ", ".join(str(at + 1) for at in dividers)
        raise _syntax_error(f"The block at line {opened + 1} of the edit could be divided at lines {where}.")
    replacement = dialect.read(lines[opened + 1 : dividers[0]], lines[dividers[0] + 1 : closed])
    return _Block(
        replacement, opened, closed + 1, _find_name_after(lines[opened]) or _find_name_above(lines[above:opened])
    )


def _read_tagged_block(lines: list[str], opened: int, above: int) -> _Block:
    """Return the block of Zed's tags that opens at `opened`; raises `EditSyntaxError` where a tag is missing."""
    tag = _OLD_TAG.fullmatch(lines[opened])
    assert tag is not None
    at = opened
    found: list[int] = []
    for wanted in ("</old_text>", "<new_text>", "</new_text>"):
        at = next(
            (row for row in range(at + 1, len(lines)) if lines[row].strip() in (wanted, "<old_text>")), len(lines)
        )
        if at == len(lines) or lines[at].strip() != wanted:
            raise _syntax_error(f"The block at line {opened + 1} of the edit has no line '{wanted}'.")
        found.append(at)
    old_end, new_start, end = found
    if any(line.strip() for line in lines[old_end + 1 : new_start]):
        raise _syntax_error(
            f"Lines stand between the old and the new text of the block at line {opened + 1} of the edit."
        )
    hint = Hint(line=max(0, int(tag["line"]) - 1)) if tag["line"] else Hint()
    change = Replacement(tuple(lines[opened + 1 : old_end]), tuple(lines[new_start + 1 : end]), hint)
    return _Block(change, opened, end + 1, _find_name_above(lines[above:opened]))


def _find_name_above(lines: list[str]) -> str:
    for line in lines[: -_NAME_REACH - 1 : -1]:
        name = parse_file_name(line)
        if name:
            return "" if is_label(name) else name
        if not is_fence(line) and line.strip():
            return ""
    return ""


def _find_name_after(marker_line: str) -> str:
    opener = _OPENER.fullmatch(marker_line)
    return parse_file_name(opener["name"] or "") if opener else ""


def _find_closing_line(lines: list[str], opened: int, marker: str, closer: str) -> int:
    """Return the end line of a block: it says 'REPLACE', or is the only bare marker that could end the block."""
    bare: list[int] = []
    for at in range(opened + 1, len(lines)):
        if _match_marker(_CLOSER, lines[at]) == closer:
            if bare:
                raise _syntax_error(
                    f"The block at line {opened + 1} of the edit could end at lines {bare[0] + 1}, {at + 1}."
                )
            return at
        if _match_marker(_OPENER, lines[at]) == marker:
            if bare:
                break
            raise _syntax_error(f"Line {at + 1} of the edit opens a block inside the block of line {opened + 1}.")
        bare += [at] if _match_marker(_BARE_CLOSER, lines[at]) == closer else []
    if len(bare) == 1:
        return bare[0]
    raise _syntax_error(
        f"The block at line {opened + 1} of the edit has no end line '{closer} REPLACE', so that its last lines may be "
        "missing."
    )


def _match_marker(pattern: re.Pattern[str], line: str) -> str:
    """Return the signs of a marker line, '' if it is none; only a file name may follow the word."""
    found = pattern.fullmatch(line)
    if found is None or ("name" in found.groupdict() and found["name"] and not parse_file_name(found["name"])):
        return ""
    return found[1]


def _list_outside(lines: list[str]) -> list[int]:
    """Return the indices of the lines outside of blocks; an unclosed block reaches to the end."""
    outside: list[int] = []
    closer = ""
    for at, line in enumerate(lines):
        if closer:
            ends = closer in (_match_marker(_CLOSER, line), _match_marker(_BARE_CLOSER, line), line.strip())
            closer = "" if ends else closer
        elif marker := _match_marker(_OPENER, line):
            closer = _CLOSER_OF[marker[0]] * len(marker)
        elif _OLD_TAG.fullmatch(line):
            closer = "</new_text>"
        else:
            outside.append(at)
    return outside


def _syntax_error(message: str) -> EditSyntaxError:
    return EditSyntaxError(
        "malformed",
        message,
        "Write each block as '<<<<<<< SEARCH', the old lines, '=======', the new lines, '>>>>>>> REPLACE', all three "
        "markers at column 0 and equally long; use 8 or 9 characters if the text itself holds such lines.",
    )
