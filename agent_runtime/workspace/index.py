"""The tokens and spans of a root's files, kept up to date by a watcher."""

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
"""`idle`: nobody has asked for a file yet. `failed`: the folder cannot be watched, and no file of it is known."""


class TokenIndex(Protocol):
    """Whoever may have the tokens of a file at hand."""

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        """Those of the file at `path` (relative, POSIX) below `root`, if they are of just this text; else None.

        Without a root, the path is taken below whichever folder is usual.
        """
        ...

    def close(self) -> None:
        """Look at no more files."""
        ...


class WatchedIndex:
    """A watched folder, which is indexed once the first file of it is asked for: most edits need no tokens.

    Until it is, and where it cannot be, no file is known.
    """

    def __init__(
        self, root: Path, tokenizer: BPETokenizer, store: Path | None = None, say: Callable[[str], None] = print
    ) -> None:
        """`store` keeps the tokens for the next time; `say` is told, in a line, where the folder cannot be watched."""
        self._root = root
        self._tokenizer = tokenizer
        self._store = store
        self._say = say
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cache: RepoCache | None = None
        self._closed = False
        self._fault = ""
        self._progress: IndexProgress | None = None

    @property
    def state(self) -> WatchState:
        """What it does."""
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
        """Why the folder cannot be watched; "" where it can."""
        return self._fault

    @property
    def progress(self) -> IndexProgress | None:
        """How far a long indexing is, while it goes on; None where there is nothing to tell."""
        return self._progress

    @property
    def cache(self) -> RepoCache | None:
        """What the folder holds, once it is indexed."""
        return self._cache

    def find_tokens(self, path: str, text: str, root: str = "") -> FileTokens | None:
        """Those of the file at `path`, if they are of just this text; never waits.

        The hash is that of the file's bytes, so a file with a BOM, other line endings or another encoding than UTF-8 is
        not known: the model sees another text.
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
        """Index now, and tell whether the folder is watched then."""
        self.start()
        if self._thread is not None:  # None where it was closed before
            self._thread.join(timeout_s)
        return self._cache is not None

    def close(self) -> None:
        """Stop watching; an indexing that still goes on is of no use to anybody, and is not waited for."""
        with self._lock:
            self._closed = True
            cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    def start(self) -> None:
        """Index, in a thread of its own, unless that was done already."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._build, name="hunk-watch", daemon=True)
                self._thread.start()

    def _build(self) -> None:
        try:
            cache = RepoCache.open(self._root, self._tokenizer, store=self._store, progress=self._on_progress)
        except Exception as error:  # noqa: BLE001 -- the outermost loop of this thread: edits do without it
            self._fault = str(error)
            self._say(f"{self._root} is not watched, its files are encoded anew for each edit: {error}")
            return
        with self._lock:
            self._progress = None
            if not self._closed:
                self._cache = cache
                return
        cache.close()

    def _on_progress(self, progress: IndexProgress) -> None:
        self._progress = progress
