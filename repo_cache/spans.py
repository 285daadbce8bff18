"""The spans of a file, their keys, and the difference of two versions."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel

from repo_cache.syntax import SyntaxTree

KEY_BYTES = 16


def compute_span_keys(
    fingerprint: bytes, token_ids: NDArray[np.uint32], start: int, ends: Sequence[int] | NDArray[np.uint32]
) -> NDArray[np.uint8]:
    """Return the keys of neighbouring spans, [num_spans, KEY_BYTES]; the first span begins at token `start`, each ends
    at its end.

    A key is BLAKE2b-128 (RFC 7693) over the tokenizer's fingerprint and the ids as little-endian uint32. The
    fingerprint is hashed once and the state copied, which takes a microsecond a span.
    """
    base = blake2b(fingerprint, digest_size=KEY_BYTES)
    ids = np.ascontiguousarray(token_ids, dtype="<u4").view(np.uint8).data
    digests = []
    for end in ends:
        state = base.copy()
        state.update(ids[4 * start : 4 * int(end)])
        digests.append(state.digest())
        start = int(end)
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), KEY_BYTES)


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `[start, end)` of a file. Lines count from 0; `[first_line, end_line)` are the lines that it touches."""

    key: bytes
    start: int
    end: int
    first_line: int
    end_line: int


@dataclass(frozen=True, eq=False)
class FileSpans:
    """The spans of one version of a file. They tile its tokens without gap or overlap. The arrays are read-only.

    A span takes 26 bytes. The arrays of blocks (see `repo_cache.chunks`) are for the next cut: 8 bytes a block.
    """

    ends: NDArray[np.uint32]
    """The token after each span, [num_spans]."""
    keys: NDArray[np.uint8]
    """[num_spans, KEY_BYTES]; see `compute_span_keys`."""
    first_lines: NDArray[np.uint32]
    """The line of each span's first byte, [num_spans]."""
    mid_line: NDArray[np.bool_]
    """Whether a non-blank precedes the span on its first line, [num_spans]."""
    num_lines: int
    """The lines of the file, including an unterminated last line."""
    block_starts: NDArray[np.uint32]
    """The first byte of each block, [num_blocks]."""
    block_spans: NDArray[np.uint32]
    """The number of spans before each block, [num_blocks]."""

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Span:
        """Return the span at an index, which may be negative. Raises IndexError."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"span {index} of {len(self)}")
        index %= len(self)
        behind = index + 1
        if behind == len(self):
            end_line = self.num_lines
        else:
            end_line = int(self.first_lines[behind]) + bool(self.mid_line[behind])
        first_line = int(self.first_lines[index])
        start = int(self.ends[index - 1]) if index else 0
        return Span(self.get_key(index), start, int(self.ends[index]), first_line, max(end_line, first_line + 1))

    def __iter__(self) -> Iterator[Span]:
        return (self[index] for index in range(len(self)))

    def get_key(self, index: int) -> bytes:
        return bytes(self.keys[index])

    def list_keys(self) -> list[bytes]:
        """Return all keys, in order."""
        joined = self.keys.tobytes()
        return [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)]

    def replace_blocks(
        self, first: int, last: int, made: FileSpans, *, more_bytes: int, more_tokens: int, more_lines: int
    ) -> FileSpans:
        """Replace blocks [first, last) by `made`, and shift what comes after them."""
        start = int(self.block_spans[first]) if first < len(self.block_spans) else len(self)
        stop = int(self.block_spans[last]) if last < len(self.block_spans) else len(self)
        more_spans = start + len(made) - stop
        return FileSpans(
            ends=np.concatenate([self.ends[:start], made.ends, _shift(self.ends[stop:], more_tokens)]),
            keys=np.concatenate([self.keys[:start], made.keys, self.keys[stop:]]),
            first_lines=np.concatenate(
                [self.first_lines[:start], made.first_lines, _shift(self.first_lines[stop:], more_lines)]
            ),
            mid_line=np.concatenate([self.mid_line[:start], made.mid_line, self.mid_line[stop:]]),
            num_lines=made.num_lines,
            block_starts=np.concatenate(
                [self.block_starts[:first], made.block_starts, _shift(self.block_starts[last:], more_bytes)]
            ),
            block_spans=np.concatenate(
                [
                    self.block_spans[:first],
                    made.block_spans + np.uint32(start),
                    _shift(self.block_spans[last:], more_spans),
                ]
            ),
        )

    def __eq__(self, other: object) -> bool:
        """Compare spans, keys, lines and blocks."""
        if not isinstance(other, FileSpans):
            return NotImplemented
        pairs = zip(self._arrays(), other._arrays(), strict=True)
        return self.num_lines == other.num_lines and all(np.array_equal(own, its) for own, its in pairs)

    def __hash__(self) -> int:
        return hash((self.keys.tobytes(), self.num_lines))

    @property
    def num_tokens(self) -> int:
        return int(self.ends[-1]) if len(self) else 0

    @property
    def nbytes(self) -> int:
        """The size of all arrays."""
        return sum(array.nbytes for array in self._arrays())

    def check_integrity(self, num_tokens: int) -> None:
        """Assert that the spans tile that many tokens and that the arrays fit together."""
        assert self.keys.shape == (len(self), KEY_BYTES)
        assert len(self.first_lines) == len(self.mid_line) == len(self)
        assert len(self.block_starts) == len(self.block_spans)
        assert self.num_tokens == num_tokens
        assert np.all(np.diff(self.ends.astype(np.int64), prepend=0) > 0)
        assert np.all(np.diff(self.first_lines.astype(np.int64)) >= 0)
        assert np.all(np.diff(self.block_starts.astype(np.int64)) > 0)
        assert np.all(np.diff(self.block_spans.astype(np.int64)) >= 0)
        assert not any(array.flags.writeable for array in self._arrays())

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        return self.ends, self.keys, self.first_lines, self.mid_line, self.block_starts, self.block_spans


def _shift(array: NDArray[np.uint32], more: int) -> NDArray[np.uint32]:
    return (array.astype(np.int64) + more).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class CutText:
    """The spans of a file, and the trees of its long blocks by their start, which speed up the next cut."""

    spans: FileSpans
    trees: Mapping[int, SyntaxTree]

    @property
    def num_bytes(self) -> int:
        """The approximate memory that it takes: a tree takes some fifty times its text."""
        return self.spans.nbytes + sum(50 * tree.num_bytes for tree in self.trees.values())


MAX_MATRIX_BITS = 400_000_000
"""rapidfuzz keeps a bit for every pair of an old and a new span: 4e8 bits are 50 MB, for two files of two million
tokens each.

In longer files only equal spans at both ends are kept; other spans of equal keys count as moved.
"""

_Old = TypeVar("_Old")
_New = TypeVar("_New")


@dataclass(frozen=True, slots=True)
class KeptRun:
    """`length` neighbouring spans of equal keys, from index `old` in one version and `new` in the other."""

    old: int
    new: int
    length: int


@dataclass(frozen=True, slots=True)
class SpanChanges:
    """The difference of two versions, by span index. Every old and every new span is in exactly one field.

    `kept` spans have their keys in both versions, in the same order. `moved` pairs (old, new) have equal keys
    elsewhere. `changed` pairs (old, new) stand between the same kept spans. All others are `new` or `removed`.
    """

    kept: tuple[KeptRun, ...] = ()
    moved: tuple[tuple[int, int], ...] = ()
    changed: tuple[tuple[int, int], ...] = ()
    new: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()

    @property
    def num_kept(self) -> int:
        return sum(run.length for run in self.kept)


def compare_spans(before: FileSpans | None, after: FileSpans | None) -> SpanChanges:
    """Compare two versions of a file; None if it does not exist."""
    if before is None or after is None:
        num_old, num_new = len(before or ()), len(after or ())
        return SpanChanges(new=tuple(range(num_new)), removed=tuple(range(num_old)))
    kept = _find_kept_runs(before, after)
    gaps = list(_find_gaps(kept, len(before), len(after)))
    moved = _pair_equal_keys(
        ((before.get_key(old), old) for olds, _ in gaps for old in olds),
        ((after.get_key(new), new) for _, news in gaps for new in news),
    )
    moved_old, moved_new = {old for old, _ in moved}, {new for _, new in moved}
    changed: list[tuple[int, int]] = []
    made: list[int] = []
    removed: list[int] = []
    for olds, news in gaps:
        old_left = [old for old in olds if old not in moved_old]
        new_left = [new for new in news if new not in moved_new]
        pairs = min(len(old_left), len(new_left))
        changed.extend(zip(old_left[:pairs], new_left[:pairs], strict=True))
        removed.extend(old_left[pairs:])
        made.extend(new_left[pairs:])
    return SpanChanges(tuple(kept), tuple(moved), tuple(changed), tuple(made), tuple(removed))


def _pair_equal_keys(lost: Iterable[tuple[bytes, _Old]], got: Iterable[tuple[bytes, _New]]) -> list[tuple[_Old, _New]]:
    """Pair equal keys, in the order of `got`; of several with one key the first goes with the first."""
    places: defaultdict[bytes, deque[_Old]] = defaultdict(deque)
    for key, old in lost:
        places[key].append(old)
    return [(places[key].popleft(), new) for key, new in got if places.get(key)]


def _find_kept_runs(before: FileSpans, after: FileSpans) -> list[KeptRun]:
    """Return a longest common subsequence of the keys as runs of indices, after removing equal spans at both ends."""
    most = min(len(before), len(after))
    num_first = _count_equal(before.keys[:most], after.keys[:most])
    rest = most - num_first
    num_last = _count_equal(before.keys[len(before) - rest :][::-1], after.keys[len(after) - rest :][::-1])
    numbers: dict[bytes, int] = {}
    # Numbers instead of keys: rapidfuzz compares hashes, and small numbers have no collisions.
    olds, news = (
        [numbers.setdefault(spans.get_key(index), len(numbers)) for index in range(num_first, len(spans) - num_last)]
        for spans in (before, after)
    )
    runs = [(0, 0, num_first)]
    if 0 < len(olds) * len(news) <= MAX_MATRIX_BITS:
        equal = (op for op in Indel.opcodes(olds, news) if op.tag == "equal")
        runs += [(num_first + op.src_start, num_first + op.dest_start, op.src_end - op.src_start) for op in equal]
    runs.append((len(before) - num_last, len(after) - num_last, num_last))
    return _merge_runs(runs)


def _merge_runs(runs: Iterable[tuple[int, int, int]]) -> list[KeptRun]:
    """Remove empty runs, and merge runs that touch."""
    made: list[KeptRun] = []
    for old, new, length in runs:
        last = made[-1] if made else None
        if last is not None and (last.old + last.length, last.new + last.length) == (old, new):
            made[-1] = KeptRun(last.old, last.new, last.length + length)
        elif length:
            made.append(KeptRun(old, new, length))
    return made


def _find_gaps(kept: Iterable[KeptRun], num_old: int, num_new: int) -> Iterator[tuple[range, range]]:
    """Yield the old and the new indices between kept runs."""
    old = new = 0
    for run in (*kept, KeptRun(num_old, num_new, 0)):
        yield range(old, run.old), range(new, run.new)
        old, new = run.old + run.length, run.new + run.length


def _count_equal(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    """Count the equal keys at the beginning of two arrays of one length."""
    differs = (first != second).any(axis=1)
    return int(differs.argmax()) if differs.any() else len(first)
