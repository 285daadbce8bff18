"""Unified diffs as `patch` and `git apply` take them, made from rapidfuzz's opcodes over lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from editor.alignment import LineOp, line_opcodes

NO_NEWLINE = "\\ No newline at end of file\n"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def unified_diff(before: str, after: str, path: str, context: int = 3) -> str:
    r"""Return the unified diff from `before` to `after`, '' if they are equal.

    Lines end at "\n" alone; a last line without one differs from the same line with one, and is marked so.
    """
    if before == after:
        return ""
    old, new = _LINE.findall(before), _LINE.findall(after)
    parts = [f"--- {_header_name('a', path)}\n", f"+++ {_header_name('b', path)}\n"]
    for hunk in _hunks(line_opcodes(old, new), context):
        parts.append(_hunk_header(hunk))
        for op in hunk:
            if op.equal:
                parts += (_body_line(" ", line) for line in old[op.a_start : op.a_end])
            else:
                parts += (_body_line("-", line) for line in old[op.a_start : op.a_end])
                parts += (_body_line("+", line) for line in new[op.b_start : op.b_end])
    return "".join(parts)


def _body_line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n{NO_NEWLINE}"


def _hunks(ops: list[LineOp], context: int) -> Iterator[list[LineOp]]:
    """Group the changes, each with up to `context` equal lines about it; near changes share a hunk."""
    hunk: list[LineOp] = []
    for op in ops:
        if not op.equal:
            hunk.append(op)
            continue
        length = op.a_end - op.a_start
        if any(not earlier.equal for earlier in hunk):
            if length <= 2 * context and op is not ops[-1]:
                hunk.append(op)
                continue
            kept = min(context, length)
            hunk.append(op._replace(a_end=op.a_start + kept, b_end=op.b_start + kept))
            yield hunk
        kept = min(context, length)
        hunk = [op._replace(a_start=op.a_end - kept, b_start=op.b_end - kept)]
    if any(not op.equal for op in hunk):
        yield hunk


def _hunk_header(hunk: list[LineOp]) -> str:
    first, last = hunk[0], hunk[-1]
    old = _range(first.a_start, last.a_end)
    new = _range(first.b_start, last.b_end)
    return f"@@ -{old} +{new} @@\n"


def _range(start: int, end: int) -> str:
    """Return 'line,count'; an empty range names the line before it, as POSIX diff does."""
    return f"{start + 1 if end > start else start},{end - start}"


def _header_name(side: str, path: str) -> str:
    name = f"{side}/{path.lstrip('/')}"  # git names what lies at an absolute path so, too
    if any(char in '"\\' or char < " " or char == "\x7f" for char in name):
        return '"' + "".join(_quoted(char) for char in name) + '"'
    # A tab ends the name, otherwise `patch` cuts it at the first space.
    return name + "\t" if " " in name else name


def _quoted(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char >= " " and char != "\x7f" else f"\\{ord(char):03o}"
