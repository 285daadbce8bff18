"""Write an edit in each format, from the texts before and after it or from its parts.

The functions return None where a format cannot say it: a block of whole lines knows nothing of the final newline, and a
marker line inside the text may leave no marker free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from editor.diff import line_opcodes, render_unified_diff

_MARKER_SIZES = range(7, 10)


@dataclass(frozen=True, slots=True)
class Span:
    """Lines [a_start, a_end) of the old text become lines [b_start, b_end) of the new one."""

    a_start: int
    a_end: int
    b_start: int
    b_end: int


def render_blocks(parts: Iterable[tuple[str, str]]) -> str:
    """Write (search, replace) pairs as blocks, each with markers longer than any such line inside."""
    return "".join(_render_block(before, after) for before, after in parts)


def render_replacement(old: str, new: str) -> str:
    """Write an exact replacement the way a tool call carries it."""
    return json.dumps({"old_text": old, "new_text": new}, ensure_ascii=False)


def render_lazy(before: str, after: str, marker: str, context: int = 2) -> str:
    """Write the changed lines with `context` lines about them, and a placeholder for everything between."""
    a, b = before.split("\n"), after.split("\n")
    out: list[str] = []
    spans = _grow_spans(
        diff_texts(a, b), lambda span: (max(0, span.a_start - context), min(len(a), span.a_end + context))
    )
    for number, span in enumerate(spans):
        if span.a_start or number:
            out.append(marker)
        out += b[span.b_start : span.b_end]
    if spans and spans[-1].a_end < len(a):
        out += [marker, ""]
    return "\n".join(out)


def render_search_replace(before: str, after: str) -> str | None:
    """Write one block for each change, with as many lines about it as make its SEARCH part stand once."""
    if not has_same_ends(before, after) or _needs_more_markers(before + after):
        return None
    a, b = _render_lines(before), _render_lines(after)
    spans = find_unique_spans(a, b)
    return render_blocks([(_join_lines(a[s.a_start : s.a_end]), _join_lines(b[s.b_start : s.b_end])) for s in spans])


def render_udiff(before: str, after: str, path: str, context: int = 3) -> str | None:
    """Write a unified diff."""
    return render_unified_diff(before, after, path, context) or None


def render_v4a(before: str, after: str, path: str) -> str | None:
    """Write a V4A patch. Its rules end every file with a newline, so both texts must have one, or be empty."""
    if not after or not before.endswith("\n") or not after.endswith("\n"):
        return None
    a, b = _render_lines(before), _render_lines(after)
    out = ["*** Begin Patch", f"*** Update File: {path}"]
    for span in find_unique_spans(a, b):
        out.append("@@")
        out += _render_hunk(a[span.a_start : span.a_end], b[span.b_start : span.b_end])
        out += ["*** End of File"] if span.a_end == len(a) else []
    return "\n".join([*out, "*** End Patch", ""])


def render_whole(before: str, after: str) -> str | None:
    """Write the whole file. It says nothing of the final newline, and a fence about all of it would be taken off."""
    if not after.strip() or not has_same_ends(before, after):
        return None
    first = next(line for line in after.split("\n") if line.strip())
    return None if first.lstrip().startswith(("```", "~~~")) else after


def render_replace(before: str, after: str) -> str | None:
    """Write one exact replacement from the first to the last difference, and as many lines more as make it unique."""
    if not before:
        return None
    start = _count_common_prefix(before, after)
    stop = len(before) - _count_common_prefix(before[start:][::-1], after[start:][::-1])
    while start == stop or _is_repeated(before, before[start:stop]):
        start = before.rfind("\n", 0, max(0, start - 1)) + 1
        stop = (before.find("\n", stop) + 1) or len(before)
    return render_replacement(before[start:stop], after[start : len(after) - (len(before) - stop)])


def render_line_ranges(before: str, after: str) -> str | None:
    """Write each change by its line numbers with the old lines; lines that are only added take the one above along."""
    if not before or not has_same_ends(before, after):
        return None
    a, b = _render_lines(before), _render_lines(after)
    spans = _grow_spans(diff_texts(a, b), _include_line)
    return json.dumps(
        [
            {
                "start_line": span.a_start + 1,
                "end_line": span.a_end,
                "old": _join_lines(a[span.a_start : span.a_end]),
                "new": _join_lines(b[span.b_start : span.b_end]),
            }
            for span in spans
        ],
        ensure_ascii=False,
    )


def has_same_ends(before: str, after: str) -> bool:
    """Return whether an edit that says nothing of the final newline can mean this; a file that is created gets one."""
    return (not before or before.endswith("\n")) == after.endswith("\n")


def diff_texts(a: Sequence[str], b: Sequence[str]) -> list[Span]:
    """Return the changed spans between two lists of lines, without context."""
    return [Span(*op[1:]) for op in line_opcodes(a, b) if not op.equal]


def find_unique_spans(a: Sequence[str], b: Sequence[str]) -> list[Span]:
    """Return the changed spans, each grown until its old lines stand once in `a` and are not blank; none overlap."""
    return _grow_spans(diff_texts(a, b), lambda span: _find_unique_range(span, a))


def _find_unique_range(span: Span, a: Sequence[str]) -> tuple[int, int]:
    for context in range(len(a) + 1):
        start, end = max(0, span.a_start - context), min(len(a), span.a_end + context)
        if any(line.strip() for line in a[start:end]) and count(a, a[start:end]) == 1:
            return start, end
    return 0, len(a)


def _grow_spans(spans: Sequence[Span], grow: Callable[[Span], tuple[int, int]]) -> list[Span]:
    """Return the spans with the old lines that `grow` asks for about each; those that then meet become one."""
    groups: list[tuple[int, int, list[Span]]] = []
    for span in spans:
        start, end = grow(span)
        group = [span]
        while groups and start <= groups[-1][1]:
            above = groups.pop()
            start, end, group = min(start, above[0]), max(end, above[1]), above[2] + group
        groups.append((start, end, group))
    return [
        Span(start, end, group[0].b_start - (group[0].a_start - start), group[-1].b_end + (end - group[-1].a_end))
        for start, end, group in groups
    ]


def _count_common_prefix(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(one), len(other)))


def count(lines: Sequence[str], part: Sequence[str]) -> int:
    starts = (at for at, line in enumerate(lines) if line == part[0])
    return sum(lines[at : at + len(part)] == part for at in starts)


def _include_line(span: Span) -> tuple[int, int]:
    if span.a_start < span.a_end:
        return span.a_start, span.a_end
    return max(0, span.a_start - 1), max(1, span.a_start)


def _is_repeated(text: str, part: str) -> bool:
    return text.find(part, text.find(part) + 1) >= 0


def _render_hunk(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    for op in line_opcodes(old, new):
        if op.equal:
            yield from (" " + line for line in old[op.a_start : op.a_end])
        else:
            yield from ("-" + line for line in old[op.a_start : op.a_end])
            yield from ("+" + line for line in new[op.b_start : op.b_end])


def _render_block(before: str, after: str) -> str:
    size = next((size for size in _MARKER_SIZES if not _has_marker(f"{before}\n{after}", size)), _MARKER_SIZES[-1])
    parts = ("<" * size + " SEARCH", before, "=" * size, after, ">" * size + " REPLACE")
    return "".join(part if not part or part.endswith("\n") else part + "\n" for part in parts)


def _has_marker(text: str, size: int) -> bool:
    return any(line.startswith(("=" * size, "<" * size, ">" * size)) for line in text.split("\n"))


def _needs_more_markers(text: str) -> bool:
    return _has_marker(text, _MARKER_SIZES[-1])


def _render_lines(text: str) -> list[str]:
    """Return the lines of a text; the end of the last one is no line."""
    return text.removesuffix("\n").split("\n") if text else []


def _join_lines(lines: Sequence[str]) -> str:
    return "".join(line + "\n" for line in lines)
