"""Immutable snapshots of a workspace, and the changes between two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from repo_cache.errors import ForeignSnapshot, NotCached
from repo_cache.types import FileChange, FileTokens

NUM_BUCKETS = 256
"""With 50,000 paths, a changed copy takes 2 µs and 9 KB; copying a dict takes 300 µs and 1.9 MB."""

Value = TypeVar("Value")


class PathMap(Mapping[str, Value], Generic[Value]):
    """An immutable map from paths to values (never None), in the order of the paths; `copy_with` makes the next one.

    The paths are in `NUM_BUCKETS` dicts by hash. A changed copy has new dicts for the buckets that changed and shares
    the others. So `find_different_paths` looks only into buckets that are not the same object: its cost is that of the
    change, however many maps lie in between.
    """

    __slots__ = ("_buckets", "_len")

    def __init__(self, entries: Mapping[str, Value] | None = None) -> None:
        self._buckets: tuple[dict[str, Value], ...] = ({},) * NUM_BUCKETS
        self._len = 0
        if entries:
            filled = self.copy_with(entries)
            self._buckets, self._len = filled._buckets, filled._len

    def copy_with(self, entries: Mapping[str, Value], removed: frozenset[str] = frozenset()) -> PathMap[Value]:
        """Return a map with `entries` added or replaced, and the `removed` paths deleted."""
        buckets, length = list(self._buckets), self._len
        for path in removed:
            number = hash(path) % NUM_BUCKETS
            if path in buckets[number] and path not in entries:
                length -= 1
                self._copy_bucket(buckets, number).pop(path)
        for path, value in entries.items():
            number = hash(path) % NUM_BUCKETS
            if buckets[number].get(path) is value:
                continue
            length += path not in buckets[number]
            self._copy_bucket(buckets, number)[path] = value
        made: PathMap[Value] = PathMap()
        made._buckets, made._len = tuple(buckets), length
        return made

    def _copy_bucket(self, buckets: list[dict[str, Value]], number: int) -> dict[str, Value]:
        """Return a bucket, copied at its first change."""
        if buckets[number] is self._buckets[number]:
            buckets[number] = buckets[number].copy()
        return buckets[number]

    def find_different_paths(self, other: PathMap[Value]) -> list[str]:
        """Return the paths, sorted, at which the two maps do not hold the same object."""
        found = []
        for ours, theirs in zip(self._buckets, other._buckets, strict=True):
            if ours is not theirs:
                found += [path for path, value in ours.items() if theirs.get(path) is not value]
                found += [path for path in theirs if path not in ours]
        return sorted(found)

    def __getitem__(self, path: str) -> Value:
        return self._buckets[hash(path) % NUM_BUCKETS][path]

    def __contains__(self, path: object) -> bool:
        return path in self._buckets[hash(path) % NUM_BUCKETS]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(path for bucket in self._buckets for path in bucket))

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        return f"PathMap of {self._len} paths"


@dataclass(frozen=True, eq=False, slots=True)
class Snapshot(Mapping[str, FileTokens]):
    """Paths (relative, POSIX) and their `FileTokens`, in the order of the paths. Immutable, so safe to share between
    threads.

    `version` increases by one with every change of a cache. `skipped` has the files without tokens, and the reasons.
    """

    root: Path
    fingerprint: bytes
    """The tokenizer's fingerprint."""
    version: int
    files: PathMap[FileTokens]
    skipped: PathMap[str]
    num_tokens: int

    def changes(self, since: Snapshot) -> Changes:
        """Return the changes from `since` to here. Raises ForeignSnapshot if it belongs to another folder or tokenizer.

        If both come from the same cache, the cost is that of the changes, not of the workspace.
        """
        if (self.root, self.fingerprint) != (since.root, since.fingerprint):
            what = "tokenizer" if self.root == since.root else f"folder, {since.root}"
            raise ForeignSnapshot(f"the snapshot to compare with is of another {what}")
        return Changes(since, self, tuple(_find_file_changes(since.files, self.files)))

    def __getitem__(self, path: str) -> FileTokens:
        return self.files[path]

    def tokens(self, path: str) -> FileTokens:
        """Return `snapshot[path]`. Raises NotCached, which says why, if there are none."""
        found = self.files.get(path)
        if found is None:
            why = self.skipped.get(path)
            said = f"is skipped: {why}" if why else "is not in the workspace, or ignored"
            raise NotCached(path, f"{path} {said}")
        return found

    def __contains__(self, path: object) -> bool:
        return path in self.files

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def __eq__(self, other: object) -> bool:
        """Compare hash, ids and span keys of every path, and the skipped files with their reasons."""
        if not isinstance(other, Snapshot):
            return NotImplemented
        return (
            self.fingerprint == other.fingerprint
            and dict(self.skipped) == dict(other.skipped)
            and self.files.keys() == other.files.keys()
            and all(self.files[path] == other.files[path] for path in self.files.find_different_paths(other.files))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Snapshot({self.root}, version {self.version}, {len(self.files)} files, {self.num_tokens} tokens)"


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes between two snapshots, by path; falsy if there are none."""

    since: Snapshot
    until: Snapshot
    files: tuple[FileChange, ...]

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _find_file_changes(old: PathMap[FileTokens], new: PathMap[FileTokens]) -> list[FileChange]:
    changes: list[FileChange] = []
    added: dict[str, FileTokens] = {}
    removed: dict[str, FileTokens] = {}
    for path in new.find_different_paths(old):
        before, after = old.get(path), new.get(path)
        if before is None and after is not None:
            added[path] = after
        elif after is None and before is not None:
            removed[path] = before
        elif before is not None and after is not None and before.content_hash != after.content_hash:
            changes.append(FileChange(path, "modified", before, after))
    renames = find_renames(removed, added)
    gone = set(renames.values())
    changes += [FileChange(path, "removed", tokens, None) for path, tokens in removed.items() if path not in gone]
    for path, after in added.items():
        source = renames.get(path)
        before = removed[source] if source is not None else None
        changes.append(FileChange(path, "added" if source is None else "renamed", before, after, source))
    return sorted(changes, key=lambda change: change.path)


MAX_COMPARED = 100
"""With more added or removed files, spans are not compared: switching branches would cut thousands of files."""

LEAST_SHARE = 0.5
"""The share of the larger file's tokens that must be in spans of both, as git asks for half of the lines."""


def find_renames(removed: Mapping[str, FileTokens], added: Mapping[str, FileTokens]) -> dict[str, str]:
    """Return new path -> old path. No path is in two pairs; the most similar files are paired first."""
    renames = _pair_same_content(removed, added)
    taken = set(renames.values())
    old = {path: tokens for path, tokens in removed.items() if path not in taken and len(tokens)}
    new = {path: tokens for path, tokens in added.items() if path not in renames and len(tokens)}
    if max(len(old), len(new)) > MAX_COMPARED:
        return renames
    for _, old_path, new_path in sorted(_find_alike(old, new), key=lambda pair: (-pair[0], pair[1:])):
        if new_path not in renames and old_path not in taken:
            renames[new_path] = old_path
            taken.add(old_path)
    return renames


def _pair_same_content(removed: Mapping[str, FileTokens], added: Mapping[str, FileTokens]) -> dict[str, str]:
    by_hash: dict[str, list[str]] = {}
    for path in sorted(removed, reverse=True):
        by_hash.setdefault(removed[path].content_hash, []).append(path)
    renames = {}
    for path in sorted(added):
        sources = by_hash.get(added[path].content_hash)
        if sources:
            name = path.rpartition("/")[2]
            source = next((one for one in sources if one.rpartition("/")[2] == name), sources[-1])
            sources.remove(source)
            renames[path] = source
    return renames


def _find_alike(old: Mapping[str, FileTokens], new: Mapping[str, FileTokens]) -> list[tuple[float, str, str]]:
    """Return pairs (share, old path, new path) that are similar enough."""
    if not old or not new:
        return []
    where: dict[bytes, list[tuple[str, int]]] = {}
    for path, tokens in old.items():
        for key, length in _count_tokens_by_key(tokens).items():
            where.setdefault(key, []).append((path, length))
    found = []
    for new_path, tokens in new.items():
        shared: Counter[str] = Counter()
        for key, length in _count_tokens_by_key(tokens).items():
            for old_path, old_length in where.get(key, ()):
                shared[old_path] += min(length, old_length)
        for old_path, length in shared.items():
            share = length / max(len(tokens), len(old[old_path]))
            if share >= LEAST_SHARE:
                found.append((share, old_path, new_path))
    return found


def _count_tokens_by_key(tokens: FileTokens) -> Counter[bytes]:
    """Count the tokens in the spans of each key."""
    spans = tokens.spans
    lengths: Counter[bytes] = Counter()
    for key, length in zip(spans.list_keys(), np.diff(spans.ends, prepend=np.uint32(0)).tolist(), strict=True):
        lengths[key] += length
    return lengths
