"""What became of a file's spans: kept, moved, changed, new or removed."""

from __future__ import annotations

from dataclasses import dataclass

from repo_cache.spans import FileSpans


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


def compare(before: FileSpans | None, after: FileSpans | None) -> SpanChanges:
    """The difference of two versions of a file; None where there is none."""
    raise NotImplementedError
