"""Cuts a file into spans, from scratch or from the spans of its last version, with the same result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from repo_cache.block_cut import BlockTokens
from repo_cache.blocks import block_starts, next_block_starts
from repo_cache.incremental import EncodedText, Reencoded
from repo_cache.keys import span_keys
from repo_cache.spans import CutText, FileSpans
from repo_cache.syntax import SyntaxTree, parse, reparse
from repo_cache.text_change import TextChange

LONG_BYTES = 16_384
"""The trees of longer blocks are kept for the next cut: to parse less than that anew takes a millisecond or two."""

_MAX_INDENT = 200


@dataclass(frozen=True, slots=True)
class _Edges:
    """Where blocks begin, and where the last one ends: in bytes and in tokens, [num_blocks + 1] each."""

    bytes: NDArray[np.int64]
    tokens: NDArray[np.int64]

    @property
    def num_blocks(self) -> int:
        return len(self.bytes) - 1

    def between(self, first: int, last: int) -> _Edges:
        """The edges of blocks [first, last)."""
        return _Edges(self.bytes[first : last + 1], self.tokens[first : last + 1])


def cut(text: EncodedText, language: str | None, fingerprint: bytes) -> CutText:
    """Cut a file from scratch. `language` is `grammars.language_of(path)`, `fingerprint` the tokenizer's."""
    edges = _edges_in(text, block_starts(text.data, language))
    trees = {start: parse(text.data[start:end], language) for start, end in pairwise(edges.bytes.tolist())}
    num_lines = text.data.count(b"\n") + _has_open_line(text.data)
    return CutText(_spans_between(text, edges, trees, fingerprint, 0, num_lines), _long(trees))


def recut(old: CutText, before: EncodedText, after: Reencoded, language: str | None, fingerprint: bytes) -> CutText:
    """Cut a file's next version: what `cut(after.text, ...)` gives, for the price of the blocks that changed.

    `old` is the cut of `before`, in the same language and by the same tokenizer; its `trees` may be empty. A block's
    spans are a function of its bytes and of its tokens: where both are the old ones, so are the spans.
    """
    change, text = after.change, after.text
    if change is None:
        return old
    was = _edges_of(old.spans, len(before.data))
    now = _edges_in(text, next_block_starts(was.bytes[:-1], len(before.data), text.data, language, change))
    num_leading, num_trailing = _num_same(was, now, after)
    edges = now.between(num_leading, now.num_blocks - num_trailing)
    trees = {
        start: _next_tree(old.trees.get(start), before.data, text.data[start:end], start, change, language)
        for start, end in pairwise(edges.bytes.tolist())
    }
    more_lines = text.data.count(b"\n", change.start, change.new_end)
    more_lines -= before.data.count(b"\n", change.start, change.old_end)
    num_lines = old.spans.num_lines + more_lines + _has_open_line(text.data) - _has_open_line(before.data)
    first_line = _num_newlines_before(old.spans, before, num_leading, int(edges.bytes[0]))
    spans = old.spans.replaced(
        num_leading,
        was.num_blocks - num_trailing,
        _spans_between(text, edges, trees, fingerprint, first_line, num_lines),
        more_bytes=change.new_end - change.old_end,
        more_tokens=after.tokens.new_end - after.tokens.old_end,
        more_lines=more_lines,
    )
    return CutText(spans, {**_taken_over(old.trees, edges, change), **_long(trees)})


def _edges_in(text: EncodedText, starts: NDArray[np.int64]) -> _Edges:
    """The edges of blocks that start there: in tokens, the first border at or behind each."""
    places = np.searchsorted(text.token_ends, starts.astype(np.uint32), side="left") + 1
    places[:1] = 0
    return _Edges(np.append(starts, len(text.data)), np.append(places, len(text.token_ids)))


def _edges_of(spans: FileSpans, num_bytes: int) -> _Edges:
    """The edges of the blocks that a file was cut into."""
    ends = np.concatenate([np.zeros(1, np.uint32), spans.ends])
    tokens = ends[np.append(spans.block_spans, np.uint32(len(spans)))]
    return _Edges(np.append(spans.block_starts.astype(np.int64), num_bytes), tokens.astype(np.int64))


def _num_same(was: _Edges, now: _Edges, after: Reencoded) -> tuple[int, int]:
    """How many blocks at the file's beginning, and at its end, have the bytes and the tokens that they had."""
    change, tokens = after.change, after.tokens
    assert change is not None
    most = min(len(was.bytes), len(now.bytes))
    same = (was.bytes[:most] == now.bytes[:most]) & (was.tokens[:most] == now.tokens[:most])
    same &= (now.bytes[:most] <= change.start) & (now.tokens[:most] <= tokens.start)
    num_leading = _num_true(same)
    same = was.bytes[-most:] + (change.new_end - change.old_end) == now.bytes[-most:]
    same &= was.tokens[-most:] + (tokens.new_end - tokens.old_end) == now.tokens[-most:]
    same &= (now.bytes[-most:] >= change.new_end) & (now.tokens[-most:] >= tokens.new_end)
    num_trailing = _num_true(same[::-1])
    # Those were edges: of 0 and the first one both are needed for a block. No edge counts on both sides.
    return num_leading - 1, min(num_trailing, most - num_leading + 1) - 1


def _num_true(same: NDArray[np.bool_]) -> int:
    """How many are true before the first that is not."""
    return len(same) if same.all() else int(same.argmin())


def _next_tree(
    old: SyntaxTree | None, before: bytes, block: bytes, start: int, change: TextChange, language: str | None
) -> SyntaxTree | None:
    """The tree of the block that starts there, from the old one if the change is inside of the block."""
    if old is not None:
        inner = TextChange(change.start - start, change.old_end - start, change.new_end - start)
        old_end = start + len(block) - (change.new_end - change.old_end)
        if inner.start >= 0 and inner.new_end <= len(block) and old.num_bytes == old_end - start:
            return reparse(old, before[start:old_end], block, inner)
    return parse(block, language)


def _long(trees: Mapping[int, SyntaxTree | None]) -> dict[int, SyntaxTree]:
    return {start: tree for start, tree in trees.items() if tree is not None and tree.num_bytes > LONG_BYTES}


def _taken_over(trees: Mapping[int, SyntaxTree], cut_anew: _Edges, change: TextChange) -> dict[int, SyntaxTree]:
    """The old trees of the blocks that were not cut anew."""
    longer = change.new_end - change.old_end
    first, last = int(cut_anew.bytes[0]), int(cut_anew.bytes[-1])
    leading = {start: tree for start, tree in trees.items() if start < first}
    return leading | {start + longer: tree for start, tree in trees.items() if start + longer >= last}


def _spans_between(
    text: EncodedText,
    edges: _Edges,
    trees: Mapping[int, SyntaxTree | None],
    fingerprint: bytes,
    first_line: int,
    num_lines: int,
) -> FileSpans:
    """The spans of neighbouring blocks, of which the first starts in that line of a file of so many."""
    ends: list[int] = []
    block_spans = []
    for (start, end), (first, last) in zip(
        pairwise(edges.bytes.tolist()), pairwise(edges.tokens.tolist()), strict=True
    ):
        block_spans.append(len(ends))
        base = int(text.token_ends[first - 1]) - start if first else 0
        token_ends = text.token_ends[first:last].astype(np.int64) - start
        tokens = BlockTokens(text.data[start:end], text.token_ids[first:last], token_ends, base)
        ends.extend(first + place for place in tokens.ends(trees[start]))
    first_token = int(edges.tokens[0])
    lines, mid_line = _lines(text, int(edges.bytes[0]), [first_token, *ends[:-1]] if ends else [])
    return FileSpans(
        ends=np.array(ends, np.uint32),
        keys=span_keys(fingerprint, text.token_ids, first_token, ends),
        first_lines=(lines + first_line).astype(np.uint32),
        mid_line=mid_line,
        num_lines=num_lines,
        block_starts=edges.bytes[:-1].astype(np.uint32),
        block_spans=np.array(block_spans, np.uint32),
    )


def _lines(text: EncodedText, start: int, tokens: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The newlines between `start` and each token, and whether more than blanks stands before it on its line.

    `start` is where a line starts, and the tokens' first bytes are not before it.
    """
    firsts = np.array([int(text.token_ends[token - 1]) if token else 0 for token in tokens], np.int64)
    part = np.frombuffer(text.data, np.uint8)[start : int(firsts[-1]) if len(firsts) else start]
    newlines = np.flatnonzero(part == ord("\n")) + start
    lines = np.searchsorted(newlines, firsts, side="left")
    line_starts = np.concatenate([[start], newlines + 1])[lines]
    mid_line = [
        line_start < first and (first - line_start > _MAX_INDENT or not text.data[line_start:first].isspace())
        for first, line_start in zip(firsts.tolist(), line_starts.tolist(), strict=True)
    ]
    return lines, np.array(mid_line, np.bool_)


def _num_newlines_before(spans: FileSpans, text: EncodedText, block: int, start: int) -> int:
    """The newlines before a block, counted from the nearest span; `start` is the block's, or the file's end."""
    if not len(spans):
        return 0
    near = min([*spans.block_spans[block : block + 1].tolist(), len(spans) - 1])
    first = int(text.token_ends[int(spans.ends[near - 1]) - 1]) if near else 0
    between = text.data.count(b"\n", min(first, start), max(first, start))
    return int(spans.first_lines[near]) + (between if first <= start else -between)


def _has_open_line(data: bytes) -> bool:
    """Whether there is something behind the last newline."""
    return data[-1:] not in (b"", b"\n")
