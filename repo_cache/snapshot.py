"""Immutable snapshots of a workspace: the tokens and spans of every file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from repo_cache.errors import ForeignSnapshot, NotCached
from repo_cache.renames import find_renames
from repo_cache.types import FileChange, FileTokens

NUM_BUCKETS = 256
"""With 50,000 paths a changed copy takes 2 µs and 9 KB; a copied dict takes 300 µs and 1.9 MB."""

Value = TypeVar("Value")


class PathMap(Mapping[str, Value], Generic[Value]):
    """Paths to values (never None), in the order of the paths; `updated` makes the next one.

    The paths lie in `NUM_BUCKETS` dicts by hash. A changed copy has new dicts for the buckets that changed and the old
    ones for the rest, so that `different_paths` finds what two maps differ in by looking at the buckets that are not
    the same object: the cost is that of the change, however many maps lie between the two.
    """

    __slots__ = ("_buckets", "_len")

    def __init__(self, entries: Mapping[str, Value] | None = None) -> None:
        self._buckets: tuple[dict[str, Value], ...] = ({},) * NUM_BUCKETS
        self._len = 0
        if entries:
            filled = self.updated(entries)
            self._buckets, self._len = filled._buckets, filled._len

    def updated(self, entries: Mapping[str, Value], removed: frozenset[str] = frozenset()) -> PathMap[Value]:
        """A map that has `entries` too, in place of those of the same path, and nothing at the `removed` paths."""
        buckets, length = list(self._buckets), self._len
        for path in removed:
            number = hash(path) % NUM_BUCKETS
            if path in buckets[number] and path not in entries:
                length -= 1
                self._own(buckets, number).pop(path)
        for path, value in entries.items():
            number = hash(path) % NUM_BUCKETS
            if buckets[number].get(path) is value:
                continue
            length += path not in buckets[number]
            self._own(buckets, number)[path] = value
        made: PathMap[Value] = PathMap()
        made._buckets, made._len = tuple(buckets), length
        return made

    def _own(self, buckets: list[dict[str, Value]], number: int) -> dict[str, Value]:
        """The bucket, copied the first time that it changes."""
        if buckets[number] is self._buckets[number]:
            buckets[number] = buckets[number].copy()
        return buckets[number]

    def different_paths(self, other: PathMap[Value]) -> list[str]:
        """Paths, sorted, at which the two do not hold the same object."""
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
    """Paths (relative, POSIX) to `FileTokens`, in the order of the paths; safe to keep and to share between threads.

    `version` counts up by one with every change of a cache. `skipped` has the files that are not in, and why.
    """

    root: Path
    fingerprint: bytes
    """Of the tokenizer."""
    version: int
    files: PathMap[FileTokens]
    skipped: PathMap[str]
    num_tokens: int

    def changes(self, since: Snapshot) -> Changes:
        """What happened from `since` to here; raises ForeignSnapshot where that is of another folder or tokenizer.

        Costs what changed, and not what the workspace holds, where both come from the same cache.
        """
        if (self.root, self.fingerprint) != (since.root, since.fingerprint):
            what = "tokenizer" if self.root == since.root else f"folder, {since.root}"
            raise ForeignSnapshot(f"the snapshot to compare with is of another {what}")
        return Changes(since, self, tuple(_file_changes(since.files, self.files)))

    def __getitem__(self, path: str) -> FileTokens:
        return self.files[path]

    def tokens(self, path: str) -> FileTokens:
        """As `snapshot[path]`; raises NotCached, which says why, where there are none."""
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
        """Whether both hold the same: hash, ids and span keys of every path, and what is skipped for which reason."""
        if not isinstance(other, Snapshot):
            return NotImplemented
        return (
            self.fingerprint == other.fingerprint
            and dict(self.skipped) == dict(other.skipped)
            and self.files.keys() == other.files.keys()
            and all(self.files[path] == other.files[path] for path in self.files.different_paths(other.files))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Snapshot({self.root}, version {self.version}, {len(self.files)} files, {self.num_tokens} tokens)"


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened between two snapshots, by path; false where nothing did."""

    since: Snapshot
    until: Snapshot
    files: tuple[FileChange, ...]

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def _file_changes(old: PathMap[FileTokens], new: PathMap[FileTokens]) -> list[FileChange]:
    changes: list[FileChange] = []
    added: dict[str, FileTokens] = {}
    removed: dict[str, FileTokens] = {}
    for path in new.different_paths(old):
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
