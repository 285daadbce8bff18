"""The facade of this package: a watched folder as snapshots of tokens and spans."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from repo_cache.debouncer import MAX_PATHS
from repo_cache.errors import CacheClosed, RootError
from repo_cache.files import MAX_FILE_BYTES
from repo_cache.ignore import IgnoreRules
from repo_cache.indexer import Indexer, IndexProgress
from repo_cache.snapshot import Changes, Snapshot
from repo_cache.store import DEFAULT_STORE_BYTES, TokenStore
from repo_cache.subscriptions import MAX_NOTICES, Subscription, Update, start_callback_thread
from repo_cache.token_encoder import DEFAULT_HOT_BYTES, TokenEncoder
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import Batch, FileTokens, Notice, NoticeKind
from repo_cache.watcher import Watcher

logger = logging.getLogger(__name__)

DEFAULT_RESCAN_SECONDS = 60.0
RETRY_SECONDS = 1.0
"""Delay after a fault, before the whole folder is scanned again."""


class RepoCache:
    """The tokens and spans of every text file below a folder, kept up to date.

    `snapshot`, `changes` and `tokens` never wait and may be called from any thread or coroutine. `refresh` reads files,
    so a coroutine calls it by `asyncio.to_thread`. Use `open` or `open_async`, and a `with` block.
    """

    def __init__(
        self, root: Path, workspace: Indexer, rules: IgnoreRules, store: TokenStore | None, rescan_seconds: float
    ) -> None:
        self.root = root
        self._workspace = workspace
        self._store = store
        self._rescan_seconds = rescan_seconds
        self._rules = rules
        self._updating = threading.Lock()
        """Held during an update of the index."""
        self._batches: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        """From the watcher to the thread that updates the snapshot; None wakes it to end."""
        self._closed = False
        self._publishing = threading.Lock()
        """Guards snapshot and notices, so that all subscribers get them in one order."""
        self._snapshot = workspace.snapshot
        self._subscriptions: set[Subscription] = set()
        self._notices: list[Notice] = []
        self._watcher: Watcher | None = None
        self._thread: threading.Thread | None = None

    @classmethod
    def open(
        cls,
        root: Path | str,
        tokenizer: BPETokenizer,
        *,
        watch: bool = True,
        store: Path | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        use_git: bool = True,
        max_file_bytes: int = MAX_FILE_BYTES,
        polling: bool | None = None,
        debounce_seconds: float = 0.05,
        rescan_seconds: float = DEFAULT_RESCAN_SECONDS,
        hot_bytes: int = DEFAULT_HOT_BYTES,
        max_store_bytes: int = DEFAULT_STORE_BYTES,
        progress: Callable[[IndexProgress], None] | None = None,
    ) -> RepoCache:
        """Index the folder and watch it from then on. Raises RootError if it cannot be read.

        With `watch` off, the snapshot changes only at `refresh`. `store` is a folder that keeps token ids for the next
        start and for other processes. `include` and `exclude` are patterns as in a `.gitignore` (see IgnoreRules).
        `polling` None chooses. Every `rescan_seconds` all stats are compared, in case an event was lost (0: never).
        `hot_bytes` limits the text and trees of changed files that are kept to speed up their next change.
        """
        folder = _resolve_root(root)
        rules = IgnoreRules(folder, include=include, exclude=exclude, use_git=use_git)
        said: list[str] = []
        kept = (
            TokenStore(store, tokenizer.fingerprint, max_bytes=max_store_bytes, notice=said.append) if store else None
        )
        contents = TokenEncoder(tokenizer, kept, hot_bytes)
        workspace = Indexer(folder, tokenizer.fingerprint, rules, contents, store=kept, max_file_bytes=max_file_bytes)
        made = cls(folder, workspace, rules, kept, rescan_seconds)
        try:
            if watch:
                made._watcher = Watcher(
                    folder,
                    rules,
                    made._on_batch,
                    debounce_s=debounce_seconds,
                    polling=polling,
                    max_file_bytes=max_file_bytes,
                )
                made._watcher.start()  # before the scan, so that no change in between is missed
            made._update(lambda: workspace.rescan_all(progress))
            workspace.save()
            for text in said:
                made._publish_notice(Notice(NoticeKind.STORE, text))
            if watch:
                made._thread = threading.Thread(target=made._run, name="hunk-cache", daemon=True)
                made._thread.start()
        except BaseException:
            made.close()
            raise
        return made

    @classmethod
    async def open_async(cls, root: Path | str, tokenizer: BPETokenizer, **options: object) -> RepoCache:
        """Do the same as `open`, with the same options, without blocking the event loop."""
        return await asyncio.to_thread(cls.open, root, tokenizer, **options)  # type: ignore[arg-type]

    def snapshot(self, *, fresh: bool = False) -> Snapshot:
        """Return the newest snapshot; with `fresh`, one that includes everything written before this call."""
        return self.refresh() if fresh else self._snapshot

    def refresh(self, paths: Iterable[str] | None = None) -> Snapshot:
        """Update the snapshot now: these files or folders (relative, POSIX), or the whole folder.

        A caller that wrote a file and wants to see it calls `cache.refresh(["src/a.py"])`, which takes a millisecond. A
        refresh of everything walks the whole folder. Raises CacheClosed.
        """
        if paths is None:
            return self._update(self._reconcile).snapshot
        asked = frozenset(paths)

        def look() -> Update:
            folders = self._workspace.find_folders(asked)
            return self._workspace.rescan(asked, folders)

        return self._update(look).snapshot

    def changes(self, since: Snapshot) -> Changes:
        """Return the changes since a snapshot. Raises ForeignSnapshot if it belongs to another folder or tokenizer."""
        return self.snapshot().changes(since)

    def tokens(self, path: str) -> FileTokens:
        """Return a file's tokens (relative path, POSIX). Raises NotCached, which says why, if there are none."""
        return self.snapshot().tokens(path)

    def subscribe(self, callback: Callable[[Update], None] | None = None) -> Subscription:
        """Return a subscription to the updates from now on; with a callback, a thread of its own calls it.

        For a slow reader several updates are merged into one. Raises CacheClosed.
        """
        subscription = Subscription(self._unsubscribe)
        with self._publishing:
            if self._closed:
                raise CacheClosed(f"the cache of {self.root} is closed")
            self._subscriptions.add(subscription)
        if callback is not None:
            start_callback_thread(subscription, callback)
        return subscription

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The newest notices about watching and the store."""
        return tuple(self._notices)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Stop watching, end the subscriptions and save to the store. A second call does nothing."""
        with self._publishing:
            was_closed, self._closed = self._closed, True
        if was_closed:
            return
        self._batches.put(None)
        if self._watcher is not None:
            self._watcher.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._publishing:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()
        with self._updating:
            self._workspace.save()
            if self._store is not None:
                self._store.close()

    def __enter__(self) -> RepoCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> RepoCache:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def check_integrity(self) -> None:
        """Assert that the index is consistent."""
        with self._updating:
            self._workspace.check_integrity()

    def _on_batch(self, batch: Batch) -> None:
        """Publish a batch's notices and queue its paths for the updating thread; called by the watcher."""
        for notice in batch.notices:
            self._publish_notice(notice)
        if batch.rescan or batch.paths or batch.folders:
            self._batches.put(batch)

    def _run(self) -> None:
        """Update the snapshot for each batch and rescan everything now and then; the body of the updating thread."""
        due = self._next_rescan(0.0)
        while (batch := self._next_batch(due)) is not None:
            try:
                if batch.rescan:
                    started = time.monotonic()
                    self._update(self._reconcile)
                    due = self._next_rescan(time.monotonic() - started)
                else:
                    self._update(partial(self._workspace.rescan, batch.paths, batch.folders))
            except CacheClosed:
                return
            except Exception as error:  # the outermost loop of a thread that must not end
                logger.exception("the repository cache could not be brought up to date")
                self._publish_notice(
                    Notice(NoticeKind.FAILED, f"updating the index failed ({error!r}); it is tried again")
                )
                due = time.monotonic() + RETRY_SECONDS

    def _next_batch(self, due: float) -> Batch | None:
        """Wait for a batch and merge all that are queued; from `due` on return a rescan, and None once closed."""
        batches: list[Batch | None] = []
        with suppress(queue.Empty):
            batches.append(self._batches.get(timeout=None if due == math.inf else max(0.0, due - time.monotonic())))
            while True:
                batches.append(self._batches.get_nowait())
        if self._closed:
            return None
        queued = [batch for batch in batches if batch is not None]
        paths = frozenset(path for batch in queued for path in batch.paths)
        folders = frozenset(folder for batch in queued for folder in batch.folders)
        if time.monotonic() >= due or len(paths) > MAX_PATHS or any(batch.rescan for batch in queued):
            return Batch(rescan=True)
        return Batch(paths, folders)

    def _next_rescan(self, took_seconds: float) -> float:
        """Return the time of the next full rescan; rescans take at most a twentieth of the time."""
        if not self._rescan_seconds:
            return math.inf
        return time.monotonic() + max(self._rescan_seconds, 20 * took_seconds)

    def _reconcile(self) -> Update:
        self._rules.forget()
        update = self._workspace.rescan_all()
        self._workspace.save()
        return update

    def _update(self, look: Callable[[], Update]) -> Update:
        """Run an update and publish it; subscribers get updates in the order of the snapshots."""
        with self._updating:
            if self._closed:
                raise CacheClosed(f"the cache of {self.root} is closed")
            update = look()
            if update.snapshot is not update.since:
                with self._publishing:
                    self._snapshot = update.snapshot
                    self._publish(update)
        return update

    def _publish_notice(self, notice: Notice) -> None:
        with self._publishing:
            self._notices = [*self._notices, notice][-MAX_NOTICES:]
            self._publish(Update(self._snapshot, self._snapshot, notices=(notice,)))

    def _publish(self, update: Update) -> None:
        """Push an update to all subscriptions; the caller holds the lock."""
        for subscription in self._subscriptions:
            subscription.push(update)

    def _unsubscribe(self, subscription: Subscription) -> None:
        with self._publishing:
            self._subscriptions.discard(subscription)


def _resolve_root(root: Path | str) -> Path:
    """Return the folder's resolved path. Raises RootError."""
    folder = Path(root).expanduser()
    try:
        folder = folder.resolve(strict=True)
        if not folder.is_dir():
            raise RootError(f"{root} is not a folder")
        next(iter(folder.iterdir()), None)
    except FileNotFoundError:
        raise RootError(f"there is no folder {root}") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: circular links
        raise RootError(f"{root} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return folder
