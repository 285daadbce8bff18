"""The index of a root's files as tokens and spans, kept up to date by a file watcher."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Literal, Protocol

from repo_cache.cache import RepoCache
from repo_cache.indexer import IndexProgress
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

WatchState = Literal["idle", "indexing", "watching", "failed", "closed"]
"""`idle`: no file was asked for yet. `failed`: the folder cannot be watched, and the index is empty."""


class TokenIndex(Protocol):
    """Finds the tokens of files."""

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        """Return the tokens of the file at `path` (relative, POSIX) below `root`, None unless they are of this text.

        Without a root, the path is below the default folder.
        """

    def close(self) -> None:
        """Stop indexing."""


class WatchedIndex:
    """Indexes a folder when its first file is asked for, since most edits need no tokens, and then watches it.

    Until the index is built, or if it cannot be, no tokens are found.
    """

    def __init__(
        self, root: Path, tokenizer: BPETokenizer, store: Path | None = None, report: Callable[[str], None] = print
    ) -> None:
        """`store` keeps the tokens on disk for the next start; `report` is called if the folder cannot be watched."""
        self._root = root
        self.tokenizer = tokenizer
        self._store = store
        self._report = report
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cache: RepoCache | None = None
        self._closed = False
        self._fault = ""
        self._progress: IndexProgress | None = None

    @property
    def state(self) -> WatchState:
        """The state of the index."""
        with self._lock:
            if self._closed:
                return "closed"
            if self._fault:
                return "failed"
            if self._cache is not None:
                return "watching"
            return "idle" if self._thread is None else "indexing"

    @property
    def fault(self) -> str:
        """Why the folder cannot be watched, or ""."""
        return self._fault

    @property
    def progress(self) -> IndexProgress | None:
        """Progress of a long indexing, else None."""
        return self._progress

    @property
    def cache(self) -> RepoCache | None:
        """The index of the folder, None until it is built."""
        return self._cache

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        """Return the tokens of the file at `path`, None unless they are of this text; never waits.

        Hashes are of the file's bytes, so a file with a BOM, other line endings or another encoding than UTF-8 is not
        found: the model sees another text.
        """
        if root and Path(root) != self._root:
            return None
        cache = self._cache
        if cache is None:
            self.start()
            return None
        found = cache.snapshot().get(str(PurePosixPath(path)))
        return found if found is not None and found.content_hash == sha256(text.encode()).hexdigest() else None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Build the index now; returns whether the folder is watched."""
        self.start()
        if self._thread is not None:  # None if it was closed before
            self._thread.join(timeout_s)
        return self._cache is not None

    def close(self) -> None:
        """Stop watching; does not wait for a running indexing."""
        with self._lock:
            self._closed = True
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    def start(self) -> None:
        """Start indexing in a thread, once."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._build, name="hunk-watch", daemon=True)
                self._thread.start()

    def _build(self) -> None:
        try:
            cache = RepoCache.open(self._root, self.tokenizer, store=self._store, progress=self._on_progress)
        except Exception as error:  # noqa: BLE001 -- the outermost loop of this thread; edits work without the index
            self._fault = str(error)
            self._report(f"{self._root} is not watched, its files are encoded anew for each edit: {error}")
            return
        with self._lock:
            self._progress = None
            if not self._closed:
                self._cache = cache
                return
        cache.close()

    def _on_progress(self, progress: IndexProgress) -> None:
        self._progress = progress
