"""Reads files of a workspace, never out of it: stat, bytes, and why a file is skipped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

MAX_FILE_BYTES = 2 << 20
"""Files longer than this are skipped where nothing else is asked for."""


class FileStat(NamedTuple):
    """What tells that a file was not touched, as git's index keeps it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


class SkipReason(StrEnum):
    """Why a file is not in."""

    BINARY = "binary"
    NOT_UTF8 = "not UTF-8"
    TOO_LARGE = "too large"
    UNREADABLE = "unreadable"
    GONE = "gone"
    SPECIAL = "not a regular file"
    OUTSIDE = "links out of the workspace"
    NAME = "its name is not UTF-8"
    UNSTEADY = "changed at every reading"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not in, and why."""

    path: str
    reason: SkipReason
    stat: FileStat | None = None


@dataclass(frozen=True, slots=True)
class FileContent:
    """The bytes of a file (strict UTF-8) and the stat that they belong to.

    `settled`: this stat vouches for these bytes; else the file must be hashed again when it is next compared.
    """

    data: bytes
    stat: FileStat
    settled: bool


def read_file(root: Path, path: str, *, max_file_bytes: int = MAX_FILE_BYTES) -> FileContent | Skipped:
    """Read one file; never raises OSError."""
    raise NotImplementedError


def is_settled(stat: FileStat, looked_at_ns: int) -> bool:
    """Whether a later write would show in the stat, seen at `looked_at_ns` (time.time_ns)."""
    raise NotImplementedError
