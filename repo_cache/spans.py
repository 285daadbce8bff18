"""The spans of a file, and their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repo_cache.syntax import SyntaxTree

KEY_BYTES = 16


def span_keys(
    fingerprint: bytes, token_ids: NDArray[np.uint32], start: int, ends: Sequence[int] | NDArray[np.uint32]
) -> NDArray[np.uint8]:
    """The keys of neighbouring spans, [num_spans, KEY_BYTES]: the first begins at token `start`, each ends at its end.

    A key is BLAKE2b-128 (RFC 7693) over the tokenizer's fingerprint and the ids as little-endian uint32. The
    fingerprint is hashed once and the state copied: a microsecond a span.
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
    """Tokens `[start, end)` of a file. Lines count from 0: `[first_line, end_line)` are those it has a part in."""

    key: bytes
    start: int
    end: int
    first_line: int
    end_line: int


@dataclass(frozen=True, eq=False)
class FileSpans:
    """The spans of one version of a file: they tile its tokens, no gap, no overlap. The arrays are read-only.

    26 bytes a span. What belongs to blocks (see `repo_cache.chunks`) is there for the next cut: 8 bytes a block.
    """

    ends: NDArray[np.uint32]
    """The token behind each span, [num_spans]."""
    keys: NDArray[np.uint8]
    """[num_spans, KEY_BYTES]; see `repo_cache.spans`."""
    first_lines: NDArray[np.uint32]
    """The line of each span's first byte, [num_spans]."""
    mid_line: NDArray[np.bool_]
    """Whether something other than blanks stands before the span on its first line, [num_spans]."""
    num_lines: int
    """Lines of the file; one after the last newline counts if there is something on it."""
    block_starts: NDArray[np.uint32]
    """The byte at which each block begins, [num_blocks]."""
    block_spans: NDArray[np.uint32]
    """The number of spans before each block, [num_blocks]."""

    def __post_init__(self) -> None:
        for array in self._arrays():
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Span:
        """The span at an index, negative ones from the end; raises IndexError."""
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
        return Span(self.key(index), start, int(self.ends[index]), first_line, max(end_line, first_line + 1))

    def __iter__(self) -> Iterator[Span]:
        return (self[index] for index in range(len(self)))

    def key(self, index: int) -> bytes:
        """The key of the span at an index."""
        return bytes(self.keys[index])

    def key_list(self) -> list[bytes]:
        """All keys, in order."""
        joined = self.keys.tobytes()
        return [joined[start : start + KEY_BYTES] for start in range(0, len(joined), KEY_BYTES)]

    def index_at(self, token: int) -> int:
        """The index of the span that holds a token."""
        return int(np.searchsorted(self.ends, np.uint32(token), side="right"))

    def replaced(
        self, first: int, last: int, made: FileSpans, *, more_bytes: int, more_tokens: int, more_lines: int
    ) -> FileSpans:
        """Put `made` in the place of blocks [first, last); what is behind them moves by so much."""
        start = int(self.block_spans[first]) if first < len(self.block_spans) else len(self)
        stop = int(self.block_spans[last]) if last < len(self.block_spans) else len(self)
        more_spans = start + len(made) - stop
        return FileSpans(
            ends=np.concatenate([self.ends[:start], made.ends, _moved(self.ends[stop:], more_tokens)]),
            keys=np.concatenate([self.keys[:start], made.keys, self.keys[stop:]]),
            first_lines=np.concatenate(
                [self.first_lines[:start], made.first_lines, _moved(self.first_lines[stop:], more_lines)]
            ),
            mid_line=np.concatenate([self.mid_line[:start], made.mid_line, self.mid_line[stop:]]),
            num_lines=made.num_lines,
            block_starts=np.concatenate(
                [self.block_starts[:first], made.block_starts, _moved(self.block_starts[last:], more_bytes)]
            ),
            block_spans=np.concatenate(
                [
                    self.block_spans[:first],
                    made.block_spans + np.uint32(start),
                    _moved(self.block_spans[last:], more_spans),
                ]
            ),
        )

    def __eq__(self, other: object) -> bool:
        """Whether both are the same spans with the same keys and lines, cut into the same blocks."""
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
        """Bytes of all arrays."""
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


def _moved(array: NDArray[np.uint32], more: int) -> NDArray[np.uint32]:
    return (array.astype(np.int64) + more).astype(np.uint32)


@dataclass(frozen=True, slots=True)
class CutText:
    """The spans of a file, and the trees of its long blocks, by where they start: the next cut is quicker for them."""

    spans: FileSpans
    trees: Mapping[int, SyntaxTree]

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory: a tree some fifty times its text."""
        return self.spans.nbytes + sum(50 * tree.num_bytes for tree in self.trees.values())
