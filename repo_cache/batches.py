"""What a watcher tells: batches of paths that may have changed, and notices for people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class NoticeKind(StrEnum):
    """What happened to the watching itself."""

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
    """One sentence or two for people: what happened, and what they can do about it."""

    kind: NoticeKind
    message: str


@dataclass(frozen=True, slots=True)
class Batch:
    """What may have changed since the last batch; the receiver looks for itself, so doubled events are harmless.

    `paths` are files (relative POSIX) that may have been created, written, deleted or moved; both ends of a move are
    in it. Anything below one of `folders` may have changed too: a folder came, went, moved, or its ignore rules did;
    no path lies below one of them. With `rescan`, anything may have changed, and both are empty.
    """

    paths: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    rescan: bool = False
    notices: tuple[Notice, ...] = ()
