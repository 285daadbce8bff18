"""Two texts, or the parts of an edit, written out as an edit in each format: what a careful model would have sent.

The functions return None where a format cannot say it: a block of whole lines knows nothing of the final newline, and a
marker line inside the text may leave no marker free.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from editor.alignment import line_opcodes
from editor.diff import unified_diff

_MARKER_SIZES = range(7, 10)


@dataclass(frozen=True, slots=True)
class Span:
    """Lines [a_start, a_end) of the old text become lines [b_start, b_end) of the new one."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int


def search_replace_blocks(parts: Iterable[tuple[str, str]]) -> str:
    """Write (search, replace) pairs as blocks, each with markers longer than any such line inside."""
    return "".join(_block(before, after) for before, after in parts)


def exact_replacement(old: str, new: str) -> str:
    """Write an exact replacement the way a tool call carries it."""
    return json.dumps({"old_text": old, "new_text": new}, ensure_ascii=False)


def lazy_snippet(before: str, after: str, marker: str, context: int = 2) -> str:
    """Write the changed lines with `context` lines about them, and a placeholder for everything between."""
    a, b = before.split("\n"), after.split("\n")
    out: list[str] = []
    spans = _joined([_grown(span, context, len(a)) for span in changes(a, b)])
    for number, span in enumerate(spans):
        if span.a_start or number:
            out.append(marker)
        out += b[span.b_start : span.b_end]
    if spans and spans[-1].a_end < len(a):
        out += [marker, ""]
    return "\n".join(out)


def search_replace(before: str, after: str) -> str | None:
    """Write one block for each change, with as many lines about it as make its SEARCH part stand once."""
    if before.endswith("\n") != after.endswith("\n") or _needs_more_markers(before + after):
        return None
    a, b = _lines(before), _lines(after)
    spans = unique_spans(a, b)
    return search_replace_blocks([(_text(a[s.a_start : s.a_end]), _text(b[s.b_start : s.b_end])) for s in spans])


def udiff(before: str, after: str, path: str, context: int = 3) -> str | None:
    """Write a unified diff."""
    return unified_diff(before, after, path, context) or None


def v4a(before: str, after: str, path: str) -> str | None:
    """Write a V4A patch. Its rules end every file with a newline, so both texts must have one, or be empty."""
    if not after or not before.endswith("\n") or not after.endswith("\n"):
        return None
    a, b = _lines(before), _lines(after)
    out = ["*** Begin Patch", f"*** Update File: {path}"]
    for span in unique_spans(a, b):
        out.append("@@")
        out += _hunk_lines(a[span.a_start : span.a_end], b[span.b_start : span.b_end])
        out += ["*** End of File"] if span.a_end == len(a) else []
    return "\n".join([*out, "*** End Patch", ""])


def replace(before: str, after: str) -> str | None:
    """Write one exact replacement from the first to the last difference, and as many lines more as make it unique."""
    if not before:
        return None
    start = next(
        (at for at, (x, y) in enumerate(zip(before, after, strict=False)) if x != y), min(map(len, (before, after)))
    )
    end = 0
    limit = min(len(before), len(after)) - start
    while end < limit and before[-1 - end] == after[-1 - end]:
        end += 1
    stop = len(before) - end
    while start == stop or _occurs_again(before, before[start:stop]):
        start = before.rfind("\n", 0, max(0, start - 1)) + 1
        stop = (before.find("\n", stop) + 1) or len(before)
    return exact_replacement(before[start:stop], after[start : len(after) - (len(before) - stop)])


def changes(a: Sequence[str], b: Sequence[str]) -> list[Span]:
    """Return the changed spans between two lists of lines, without context."""
    return [Span(*op[1:]) for op in line_opcodes(a, b) if not op.equal]


def unique_spans(a: Sequence[str], b: Sequence[str]) -> list[Span]:
    """Return the changed spans, each grown until its old lines stand once in `a` and are not blank; none overlap."""
    return _joined([_grown_until_unique(span, a) for span in changes(a, b)])


def _grown_until_unique(span: Span, a: Sequence[str]) -> Span:
    for context in range(len(a) + 1):
        grown = _grown(span, context, len(a))
        lines = a[grown.a_start : grown.a_end]
        if any(line.strip() for line in lines) and _count(a, lines) == 1:
            return grown
    return _grown(span, len(a), len(a))


def _grown(span: Span, context: int, num_lines: int) -> Span:
    above, below = min(context, span.a_start), min(context, num_lines - span.a_end)
    return Span(span.a_start - above, span.a_end + below, span.b_start - above, span.b_end + below)


def _joined(spans: Iterable[Span]) -> list[Span]:
    out: list[Span] = []
    for span in sorted(spans, key=lambda span: span.a_start):
        if out and span.a_start <= out[-1].a_end:
            last = out.pop()
            out.append(Span(last.a_start, max(last.a_end, span.a_end), last.b_start, max(last.b_end, span.b_end)))
        else:
            out.append(span)
    return out


def _count(lines: Sequence[str], part: Sequence[str]) -> int:
    starts = (at for at, line in enumerate(lines) if line == part[0])
    return sum(lines[at : at + len(part)] == part for at in starts)


def _occurs_again(text: str, part: str) -> bool:
    return text.find(part, text.find(part) + 1) >= 0


def _hunk_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for op in line_opcodes(old, new):
        if op.equal:
            yield from (" " + line for line in old[op.a_start : op.a_end])
        else:
            yield from ("-" + line for line in old[op.a_start : op.a_end])
            yield from ("+" + line for line in new[op.b_start : op.b_end])


def _block(before: str, after: str) -> str:
    size = next((size for size in _MARKER_SIZES if not _has_marker(f"{before}\n{after}", size)), _MARKER_SIZES[-1])
    parts = ("<" * size + " SEARCH", before, "=" * size, after, ">" * size + " REPLACE")
    return "".join(part if not part or part.endswith("\n") else part + "\n" for part in parts)


def _has_marker(text: str, size: int) -> bool:
    return any(line.startswith(("=" * size, "<" * size, ">" * size)) for line in text.split("\n"))


def _needs_more_markers(text: str) -> bool:
    return _has_marker(text, _MARKER_SIZES[-1])


def _lines(text: str) -> list[str]:
    """Return the lines of a text; the end of the last one is no line."""
    return text.removesuffix("\n").split("\n") if text else []


def _text(lines: Sequence[str]) -> str:
    return "".join(line + "\n" for line in lines)
