"""Walks a workspace: every file that is in, with its stat, and every one that is skipped, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repo_cache.ignoring import IgnoreRules
from repo_cache.reading import MAX_FILE_BYTES, FileStat, Skipped


@dataclass(frozen=True, slots=True)
class Scan:
    """What one walk saw. `links`: path of a symbolic link -> path of the file in the workspace that it stands for."""

    files: Mapping[str, FileStat]
    links: Mapping[str, str]
    skipped: tuple[Skipped, ...]
    started_ns: int


def scan(root: Path, rules: IgnoreRules, *, below: str = "", max_file_bytes: int = MAX_FILE_BYTES) -> Scan:
    """Walk the workspace, or one folder of it, without opening a file; never raises OSError.

    Ignored paths are neither in `files` nor in `skipped`. A folder that is gone or ignored gives an empty scan.
    """
    raise NotImplementedError


def scan_paths(root: Path, rules: IgnoreRules, paths: frozenset[str], *, max_file_bytes: int = MAX_FILE_BYTES) -> Scan:
    """What `scan` would say of these paths alone (of a batch); those that are gone, folders or ignored are left out."""
    raise NotImplementedError
