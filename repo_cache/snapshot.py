"""An immutable picture of a workspace: what every file holds, in tokens and spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from repo_cache.errors import ForeignSnapshot, NotCached
from repo_cache.path_map import PathMap
from repo_cache.renames import find_renames
from repo_cache.types import FileChange, FileTokens


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
