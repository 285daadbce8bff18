"""The files of a workspace by name, page by page: those that git's ignore rules leave in."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent_runtime.files.limits import MAX_FILE_BYTES
from repo_cache.ignoring import IgnoreRules
from repo_cache.scanning import scan

MAX_LISTED = 10_000
"""Of one page."""

PAGES_SECONDS = 10.0
"""For which the pages behind the first are of the walk that the first one made."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file by its path (relative, POSIX)."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FilePage:
    """Some files in the order of their paths; `next` is what to ask for behind these, None where they are the last."""

    files: tuple[ListedFile, ...]
    next: str | None


class Listing:
    """One workspace's files; the first page takes a walk over it, one walk at a time. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._sizes: Mapping[str, int] = {}
        self._walked_at = -PAGES_SECONDS

    def page(self, after: str = "", limit: int = MAX_LISTED) -> FilePage:
        """Up to `limit` files behind the path `after`. Needs no tokens: binary files are among them, ignored ones are
        not, and neither are those that are too large to be edited.
        """
        with self._lock:
            if not after or time.monotonic() - self._walked_at > PAGES_SECONDS:
                self._walk()
            paths, sizes = self._paths, self._sizes
        first = bisect_right(paths, after) if after else 0
        found = paths[first : first + limit]
        more = first + limit < len(paths)
        return FilePage(tuple(ListedFile(path, sizes[path]) for path in found), found[-1] if more else None)

    def _walk(self) -> None:
        files = scan(self._root, IgnoreRules(self._root), max_file_bytes=MAX_FILE_BYTES).files
        self._paths, self._sizes = sorted(files), {path: stat.size for path, stat in files.items()}
        self._walked_at = time.monotonic()
