"""What became of a file's spans: kept, moved, changed, new or removed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Indel

from repo_cache.spans import FileSpans

MAX_MATRIX_BITS = 400_000_000
"""rapidfuzz keeps a bit for every old span and new span: 4e8 bits are 50 MB, for two files of two million tokens each.

Of longer ones only what is the same at both ends is kept; the other spans of equal keys have moved.
"""

_Old = TypeVar("_Old")
_New = TypeVar("_New")


@dataclass(frozen=True, slots=True)
class KeptRun:
    """Neighbouring spans of equal keys: `length` of them, from index `old` in one version and `new` in the other."""

    old: int
    new: int
    length: int


@dataclass(frozen=True, slots=True)
class SpanChanges:
    """The difference of two versions; spans by their index. Every old and every new span is in exactly one place.

    `kept` spans have their keys in both, in the same order; `moved` ones, (old, new), have them elsewhere. `changed`
    pairs, (old, new), stand between the same kept spans. What is left is `new` or `removed`.
    """

    kept: tuple[KeptRun, ...] = ()
    moved: tuple[tuple[int, int], ...] = ()
    changed: tuple[tuple[int, int], ...] = ()
    new: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()

    @property
    def num_kept(self) -> int:
        return sum(run.length for run in self.kept)


@dataclass(frozen=True, slots=True)
class MovedSpan:
    """A span that one file lost and another has: the index of each."""

    old_path: str
    old: int
    path: str
    new: int


def compare(before: FileSpans | None, after: FileSpans | None) -> SpanChanges:
    """The difference of two versions of a file; None where there is none."""
    if before is None or after is None:
        num_old, num_new = len(before or ()), len(after or ())
        return SpanChanges(new=tuple(range(num_new)), removed=tuple(range(num_old)))
    kept = _kept_runs(before, after)
    gaps = list(_gaps(kept, len(before), len(after)))
    moved = _same_keys(
        ((before.key(old), old) for olds, _ in gaps for old in olds),
        ((after.key(new), new) for _, news in gaps for new in news),
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


def moved_between_files(
    files: Mapping[str, tuple[FileSpans | None, FileSpans | None]], changes: Mapping[str, SpanChanges]
) -> tuple[MovedSpan, ...]:
    """The spans that one file lost and another got: first versions and last ones by path, and their differences.

    A span that one of the `changes` calls removed or changed away from, and that another calls new or changed into, has
    moved. Each is in one pair at most; the first in the order of the paths counts.
    """
    lost: list[tuple[bytes, tuple[str, int]]] = []
    got: list[tuple[bytes, tuple[str, int]]] = []
    for path, change in changes.items():
        before, after = files[path]
        if before is not None:
            olds = sorted([*change.removed, *(old for old, _ in change.changed)])
            lost.extend((before.key(old), (path, old)) for old in olds)
        if after is not None:
            news = sorted([*change.new, *(new for _, new in change.changed)])
            got.extend((after.key(new), (path, new)) for new in news)
    return tuple(MovedSpan(*old, *new) for old, new in _same_keys(lost, got))


def _same_keys(lost: Iterable[tuple[bytes, _Old]], got: Iterable[tuple[bytes, _New]]) -> list[tuple[_Old, _New]]:
    """Pairs of equal keys, in the order of `got`; of several with one key the first goes with the first."""
    places: defaultdict[bytes, deque[_Old]] = defaultdict(deque)
    for key, old in lost:
        places[key].append(old)
    return [(places[key].popleft(), new) for key, new in got if places.get(key)]


def _kept_runs(before: FileSpans, after: FileSpans) -> list[KeptRun]:
    """A longest common subsequence of the keys, as runs of indices; what is the same at both ends is taken first."""
    most = min(len(before), len(after))
    num_first = _num_equal(before.keys[:most], after.keys[:most])
    rest = most - num_first
    num_last = _num_equal(before.keys[len(before) - rest :][::-1], after.keys[len(after) - rest :][::-1])
    numbers: dict[bytes, int] = {}
    # Numbers instead of keys: rapidfuzz compares hashes, and small numbers have no collisions.
    olds, news = (
        [numbers.setdefault(spans.key(index), len(numbers)) for index in range(num_first, len(spans) - num_last)]
        for spans in (before, after)
    )
    runs = [(0, 0, num_first)]
    if 0 < len(olds) * len(news) <= MAX_MATRIX_BITS:
        equal = (op for op in Indel.opcodes(olds, news) if op.tag == "equal")
        runs += [(num_first + op.src_start, num_first + op.dest_start, op.src_end - op.src_start) for op in equal]
    runs.append((len(before) - num_last, len(after) - num_last, num_last))
    return _joined(runs)


def _joined(runs: Iterable[tuple[int, int, int]]) -> list[KeptRun]:
    """Runs without empty ones, and without two that touch."""
    made: list[KeptRun] = []
    for old, new, length in runs:
        last = made[-1] if made else None
        if last is not None and (last.old + last.length, last.new + last.length) == (old, new):
            made[-1] = KeptRun(last.old, last.new, last.length + length)
        elif length:
            made.append(KeptRun(old, new, length))
    return made


def _gaps(kept: Iterable[KeptRun], num_old: int, num_new: int) -> Iterator[tuple[range, range]]:
    """What lies between kept runs: old indices and new ones."""
    old = new = 0
    for run in (*kept, KeptRun(num_old, num_new, 0)):
        yield range(old, run.old), range(new, run.new)
        old, new = run.old + run.length, run.new + run.length


def _num_equal(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> int:
    """How many keys two arrays of one length have in common at their beginning."""
    differs = (first != second).any(axis=1)
    return int(differs.argmax()) if differs.any() else len(first)
