"""Line alignment of two texts by rapidfuzz, and unified diffs."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from rapidfuzz.distance import Indel

from editor.execution import check_stopped

# rapidfuzz keeps a bit matrix of len(a) * len(b); 4e8 bits are 50 MB.
MAX_MATRIX_BITS = 400_000_000
# The depth of cuts within cuts: each cut looks at all lines of its range again.
MAX_CUTS = 8
# Long sequences are compared in pieces first, at the speed of C.
_CHUNK = 4096


class LineOp(NamedTuple):
    """Lines `a[a_start:a_end)` and `b[b_start:b_end)` are equal, or the first were replaced by the second.

    A change with an empty `a` range is an insertion, one with an empty `b` range a deletion. Two changes never touch.
    """

    equal: bool
    a_start: int
    a_end: int
    b_start: int
    b_end: int


def count_common_prefix(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return how many lines or characters two sequences have in common at their beginnings."""
    shorter = min(len(a), len(b))
    size = 0
    while size < shorter and a[size : size + _CHUNK] == b[size : size + _CHUNK]:
        size += _CHUNK
    size = min(size, shorter)
    while size < shorter and a[size] == b[size]:
        size += 1
    return size


def count_common_ends(a: Sequence[Hashable], b: Sequence[Hashable]) -> tuple[int, int]:
    """Return the lengths of the common prefix of two sequences, and of the common suffix of what follows it."""
    prefix = count_common_prefix(a, b)
    longest = min(len(a), len(b)) - prefix
    size = 0
    while size + _CHUNK <= longest and (
        a[len(a) - size - _CHUNK : len(a) - size] == b[len(b) - size - _CHUNK : len(b) - size]
    ):
        size += _CHUNK
    while size < longest and a[-1 - size] == b[-1 - size]:
        size += 1
    return prefix, size


def line_opcodes(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[LineOp]:
    """Return the ops that turn `a` into `b`, in order and without gaps. Equal lines are equal as Python values."""
    head, tail = count_common_ends(a, b)
    ids: dict[Hashable, int] = {}
    # Numbers instead of lines: rapidfuzz compares hashes, and small numbers have no collisions.
    left = [ids.setdefault(line, len(ids)) for line in a[head : len(a) - tail]]
    right = [ids.setdefault(line, len(ids)) for line in b[head : len(b) - tail]]
    inner = _find_matches(left, right, _Range(0, len(left), 0, len(right)), 0)
    matches = ((start_a + head, start_b + head, length) for start_a, start_b, length in inner)
    ends = ((0, 0, head),), ((len(a) - tail, len(b) - tail, tail),)
    return _join_matches(chain(ends[0], matches, ends[1]), len(a), len(b))


def ops_of_changes(changes: Iterable[tuple[int, int, int]], num_lines: int) -> tuple[LineOp, ...]:
    """Return the ops of changes (start, end, number of new lines) in text order; changes that touch are one op."""
    ops: list[LineOp] = []
    at_a = at_b = 0
    for start, end, size in changes:
        if at_a < start:
            ops.append(LineOp(True, at_a, start, at_b, at_b + start - at_a))
            at_a, at_b = start, at_b + start - at_a
        if ops and not ops[-1].equal:
            ops[-1] = ops[-1]._replace(a_end=end, b_end=at_b + size)
        else:
            ops.append(LineOp(False, start, end, at_b, at_b + size))
        at_a, at_b = end, at_b + size
    rest = num_lines - at_a
    return (*ops, LineOp(True, at_a, num_lines, at_b, at_b + rest)) if rest > 0 else tuple(ops)


def _join_matches(matches: Iterable[tuple[int, int, int]], num_a: int, num_b: int) -> list[LineOp]:
    ops: list[LineOp] = []
    at_a = at_b = run = 0
    for start_a, start_b, length in chain(matches, [(num_a, num_b, 0)]):
        if at_a < start_a or at_b < start_b:
            if run:
                ops.append(LineOp(True, at_a - run, at_a, at_b - run, at_b))
            ops.append(LineOp(False, at_a, start_a, at_b, start_b))
            run = 0
        run += length
        at_a, at_b = start_a + length, start_b + length
    if run:
        ops.append(LineOp(True, at_a - run, at_a, at_b - run, at_b))
    return ops


class _Range(NamedTuple):
    """Lines [a1, a2) of one text and [b1, b2) of the other."""

    a1: int
    a2: int
    b1: int
    b2: int


def _find_matches(a: list[int], b: list[int], part: _Range, depth: int) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal lines (start in a, start in b, length), the common ends trimmed first."""
    check_stopped()
    a1, a2, b1, b2 = part
    prefix, suffix = count_common_ends(a[a1:a2], b[b1:b2])
    if prefix:
        yield a1, b1, prefix
    a1, a2, b1, b2 = a1 + prefix, a2 - suffix, b1 + prefix, b2 - suffix
    if a1 < a2 and b1 < b2:
        yield from _match_middle(a, b, _Range(a1, a2, b1, b2), depth)
    if suffix:
        yield a2, b2, suffix


def _match_middle(a: list[int], b: list[int], part: _Range, depth: int) -> Iterator[tuple[int, int, int]]:
    a1, a2, b1, b2 = part
    if (a2 - a1) * (b2 - b1) <= MAX_MATRIX_BITS:
        for op in Indel.opcodes(a[a1:a2], b[b1:b2]):
            if op.tag == "equal":
                yield a1 + op.src_start, b1 + op.dest_start, op.src_end - op.src_start
        return
    # Too large for one matrix: cut at lines that occur once on both sides, in order (patience diff, Bram Cohen 2009).
    # Without such lines, lines at the same place are compared if both sides have as many; else the whole range counts
    # as replaced. That is correct, but not the shortest answer.
    cuts = _find_unique_lines(a, b, part) if depth < MAX_CUTS else []
    at_a, at_b = a1, b1
    for cut_a, cut_b in cuts:
        yield from _find_matches(a, b, _Range(at_a, cut_a, at_b, cut_b), depth + 1)
        yield cut_a, cut_b, 1
        at_a, at_b = cut_a + 1, cut_b + 1
    if cuts:
        yield from _find_matches(a, b, _Range(at_a, a2, at_b, b2), depth + 1)
    elif a2 - a1 == b2 - b1:
        yield from ((at, at + b1 - a1, 1) for at in range(a1, a2) if a[at] == b[at + b1 - a1])


def _find_unique_lines(a: list[int], b: list[int], part: _Range) -> list[tuple[int, int]]:
    """Return the longest increasing run of (place in a, place in b) over lines that are unique on both sides."""
    a1, a2, b1, b2 = part
    counts_a, counts_b = Counter(a[a1:a2]), Counter(b[b1:b2])
    place_b = {line: i for i, line in enumerate(b[b1:b2], b1) if counts_b[line] == 1}
    pairs = [(i, place_b[line]) for i, line in enumerate(a[a1:a2], a1) if counts_a[line] == 1 and line in place_b]
    tails: list[int] = []
    tail_at: list[int] = []
    before: list[int] = []
    for at, (_, place) in enumerate(pairs):
        length = bisect_left(tails, place)
        before.append(tail_at[length - 1] if length else -1)
        tails[length : length + 1] = [place]
        tail_at[length : length + 1] = [at]
    run: list[tuple[int, int]] = []
    at = tail_at[-1] if tail_at else -1
    while at >= 0:
        run.append(pairs[at])
        at = before[at]
    return run[::-1]


NO_NEWLINE = "\\ No newline at end of file\n"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def render_unified_diff(before: str, after: str, path: str, context: int = 3) -> str:
    r"""Return the unified diff from `before` to `after`, '' if they are equal.

    Lines end at "\n" alone; a last line without one differs from the same line with one, and is marked so.
    """
    if before == after:
        return ""
    old, new = _LINE.findall(before), _LINE.findall(after)
    parts = [f"--- {_render_name('a', path)}\n", f"+++ {_render_name('b', path)}\n"]
    for hunk in group_hunks(line_opcodes(old, new), context):
        parts.append(_render_hunk_header(hunk))
        for op in hunk:
            if op.equal:
                parts += (_render_line(" ", line) for line in old[op.a_start : op.a_end])
            else:
                parts += (_render_line("-", line) for line in old[op.a_start : op.a_end])
                parts += (_render_line("+", line) for line in new[op.b_start : op.b_end])
    return "".join(parts)


def _render_line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n{NO_NEWLINE}"


def group_hunks(ops: list[LineOp], context: int) -> Iterator[list[LineOp]]:
    """Yield hunks: changes with up to `context` equal lines around them; near changes share a hunk."""
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


def _render_hunk_header(hunk: list[LineOp]) -> str:
    first, last = hunk[0], hunk[-1]
    old = _render_range(first.a_start, last.a_end)
    new = _render_range(first.b_start, last.b_end)
    return f"@@ -{old} +{new} @@\n"


def _render_range(start: int, end: int) -> str:
    """Return 'line,count'; an empty range names the line before it, as POSIX diff does."""
    return f"{start + 1 if end > start else start},{end - start}"


def _render_name(side: str, path: str) -> str:
    name = f"{side}/{path.lstrip('/')}"  # as git names absolute paths
    if any(char in '"\\' or char < " " or char == "\x7f" for char in name):
        return '"' + "".join(_quote_char(char) for char in name) + '"'
    # A tab ends the name, otherwise `patch` cuts it at the first space.
    return name + "\t" if " " in name else name


def _quote_char(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char >= " " and char != "\x7f" else f"\\{ord(char):03o}"
