"""Types of the cache: a file's tokens and changes, and what a watcher reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from repo_cache.spans import FileSpans, SpanChanges, compare_spans

ChangeKind = Literal["added", "removed", "modified", "renamed"]

SpanCutter = Callable[[NDArray[np.uint32]], FileSpans]
"""Cuts the tokens of a whole file into spans."""


class FileTokens:
    """A file's content: its hash, tokens and spans. Immutable; files of equal content share one.

    `content_hash` is the SHA-256 of the file's bytes in hex, as `/apply` takes it as a precondition. `token_ids`,
    [num_tokens], is read-only. The spans are cut at the first access, in the thread of the caller: that needs a parse,
    and the spans of most files are never used.
    """

    __slots__ = ("__weakref__", "_cut", "_spans", "content_hash", "token_ids")

    def __init__(
        self, content_hash: str, token_ids: NDArray[np.uint32], cut: SpanCutter, spans: FileSpans | None = None
    ) -> None:
        self.content_hash = content_hash
        self.token_ids = token_ids
        self._cut = cut
        self._spans = spans

    @property
    def spans(self) -> FileSpans:
        """The runs of tokens between syntax borders, from the first token to the last."""
        spans = self._spans
        if spans is None:
            spans = self._spans = self._cut(self.token_ids)  # two threads may both cut, with equal results
        return spans

    def set_spans(self, spans: FileSpans) -> None:
        """Set spans that were cut elsewhere."""
        self._spans = spans

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        """Compare hash, ids and spans."""
        if not isinstance(other, FileTokens):
            return NotImplemented
        return self is other or (
            self.content_hash == other.content_hash
            and np.array_equal(self.token_ids, other.token_ids)
            and self.spans == other.spans
        )

    def __hash__(self) -> int:
        return hash(self.content_hash)

    def __repr__(self) -> str:
        return f"FileTokens({self.content_hash[:12]}, {len(self.token_ids)} tokens)"


@dataclass(frozen=True)
class FileChange:
    """The change of one file: `before` is None if it was added, `after` if it was removed.

    `old_path` is the earlier path of a renamed file, which may be modified too.
    """

    path: str
    kind: ChangeKind
    before: FileTokens | None
    after: FileTokens | None
    old_path: str | None = None

    @cached_property
    def spans(self) -> SpanChanges:
        """The kept, moved, changed, new and removed spans."""
        return compare_spans(self.before.spans if self.before else None, self.after.spans if self.after else None)


class NoticeKind(StrEnum):
    """Events of the watcher and the store."""

    OVERFLOW = "overflow"
    WATCH_LIMIT = "watch_limit"
    INSTANCE_LIMIT = "instance_limit"
    NETWORK_MOUNT = "network_mount"
    UNREADABLE = "unreadable"
    ROOT_GONE = "root_gone"
    FAILED = "failed"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence or two for people: what happened, and what they can do about it."""

    kind: NoticeKind
    message: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Paths that may have changed since the last batch. The receiver checks them, so duplicate events are harmless.

    `paths` are files (relative POSIX) that may have been created, written, deleted or moved; both ends of a move are
    included. Everything below one of `folders` may have changed: the folder was created, removed or moved, or its
    ignore rules changed. No path lies below one of them. With `rescan`, anything may have changed, and both are empty.
    """

    paths: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    rescan: bool = False
    notices: tuple[Notice, ...] = ()
