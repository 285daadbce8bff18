"""Updates a snapshot: scans the files and encodes those that changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from repo_cache.files import FileContent, FileStat, SkipReason, is_settled, read_file
from repo_cache.ignore import IgnoreRules
from repo_cache.scan import Scan, merge_scans, scan, scan_paths
from repo_cache.snapshot import PathMap, Snapshot
from repo_cache.store import FileRecord, TokenStore
from repo_cache.subscriptions import Update
from repo_cache.token_encoder import FileVersion, TokenEncoder
from repo_cache.types import FileTokens


@dataclass(slots=True)
class ScanResult:
    """The result of an update, by path."""

    tokens: dict[str, FileTokens] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    encoded: dict[str, int] = field(default_factory=dict)


def make_next_snapshot(before: Snapshot, found: ScanResult) -> Snapshot:
    """Return the next snapshot; `before` itself if nothing changed."""
    tokens = {path: one for path, one in found.tokens.items() if before.files.get(path) is not one}
    skipped = {path: why for path, why in found.skipped.items() if before.skipped.get(path) != why}
    out = {path for path in (*found.gone, *found.skipped) if path in before.files}
    in_again = {path for path in (*found.gone, *found.tokens) if path in before.skipped}
    if not (tokens or skipped or out or in_again):
        return before
    num_tokens = before.num_tokens + sum(len(one) for one in tokens.values())
    num_tokens -= sum(len(before.files[path]) for path in {*tokens, *out} if path in before.files)
    return Snapshot(
        before.root,
        before.fingerprint,
        before.version + 1,
        before.files.copy_with(tokens, frozenset(out)),
        before.skipped.copy_with(skipped, frozenset(in_again)),
        num_tokens,
    )


FEW_FILES = 32
FEW_BYTES = 4 << 20
"""Up to this size, an update runs in one thread and keeps what makes the next change cheap."""

CHUNK_BYTES = 512 << 10
"""Size of the files that one thread reads and encodes at a time; larger updates use all cores."""


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The progress of a long indexing."""

    num_files: int
    of_files: int
    num_bytes: int
    of_bytes: int


@dataclass(slots=True)
class _Known:
    """What was read at a path. If `settled`, an unchanged stat proves it unchanged; otherwise it is read again."""

    record: FileRecord
    settled: bool


class Indexer:
    """The newest snapshot of a folder, and the state for the next one. Not thread-safe: the owner has a lock."""

    def __init__(
        self,
        root: Path,
        fingerprint: bytes,
        rules: IgnoreRules,
        contents: TokenEncoder,
        *,
        store: TokenStore | None,
        max_file_bytes: int,
    ) -> None:
        self._root = root
        self._rules = rules
        self._contents = contents
        self._store = store
        self._max_file_bytes = max_file_bytes
        self.snapshot = Snapshot(root, fingerprint, 0, PathMap(), PathMap(), 0)
        self._links: dict[str, str] = {}
        self._loose_links: frozenset[str] = frozenset()
        self._unsaved: dict[str, bool] = {}
        """Paths whose records the store does not have yet, and whether it may lack their tokens too."""
        records = store.read_records(root) if store is not None else {}
        self._known = {path: _Known(record, True) for path, record in records.items()}

    def rescan_all(self, progress: Callable[[IndexProgress], None] | None = None) -> Update:
        """Scan the whole folder, and read each file that its stat does not prove unchanged."""
        started = time.perf_counter()
        seen = scan(self._root, self._rules, max_file_bytes=self._max_file_bytes)
        self._links, self._loose_links = dict(seen.links), seen.loose
        return self._update(seen, self._list_paths(), started, progress)

    def rescan(self, paths: Iterable[str], folders: Iterable[str] = ()) -> Update:
        """Scan these files and everything below these folders, with the links that refer to them."""
        started = time.perf_counter()
        below, asked = set(folders), set(paths)
        governed = {self._rules.get_governed_folder(path) for path in asked}
        below |= {folder for folder in governed if folder is not None}
        for folder in below:
            self._rules.forget(folder)
        if "" in below:
            return self.rescan_all()
        asked |= {link for link, target in self._links.items() if target in asked or _is_below(target, below)}
        asked |= self._loose_links  # there are few
        single = scan_paths(self._root, self._rules, frozenset(asked), max_file_bytes=self._max_file_bytes)
        scans = [single, *(self._scan_below(folder) for folder in sorted(below))]
        if below:
            asked |= {path for path in self._list_paths() if _is_below(path, below)}
        seen = merge_scans(scans)
        self._links = {path: target for path, target in self._links.items() if path not in asked} | dict(seen.links)
        self._loose_links = seen.loose
        return self._update(seen, asked, started, None)

    def find_folders(self, paths: Iterable[str]) -> set[str]:
        """Return the paths that are or were folders: an unknown path may have been one."""
        return {path for path in paths if path not in self._known and not (self._root / path).is_file()}

    def save(self) -> None:
        """Save what changed since the last save to the store."""
        if self._store is None:
            return
        records: dict[str, FileRecord | None] = {}
        tokens = []
        for path, with_tokens in list(self._unsaved.items()):
            known, file = self._known.get(path), self.snapshot.files.get(path)
            if known is None or known.settled:
                records[path] = None if known is None else known.record
                del self._unsaved[path]
                if with_tokens and file is not None:
                    tokens.append(file)
        if records:
            self._contents.save(tokens)
            self._store.write_records(self._root, records)

    def check_integrity(self) -> None:
        """Assert that the known files and the snapshot agree."""
        files, skipped = self.snapshot.files, self.snapshot.skipped
        assert not files.keys() & skipped.keys()
        assert self.snapshot.num_tokens == sum(len(tokens) for tokens in files.values())
        for path, tokens in files.items():
            assert self._known[path].record.content_hash == tokens.content_hash
        assert set(self._links) <= files.keys() | skipped.keys()

    def _list_paths(self) -> set[str]:
        return {*self.snapshot.files, *self.snapshot.skipped, *self._known}

    def _scan_below(self, folder: str) -> Scan:
        return scan(self._root, self._rules, below=folder, max_file_bytes=self._max_file_bytes)

    def _update(
        self, seen: Scan, asked: Iterable[str], started: float, progress: Callable[[IndexProgress], None] | None
    ) -> Update:
        """Return the update from a scan of the `asked` paths; those not in the scan are gone."""
        found = ScanResult(skipped={one.path: str(one.reason) for one in seen.skipped})
        self._read(self._find_changed(seen, found), found, progress)
        found.gone |= {path for path in asked if path not in seen.files and path not in found.skipped}
        for path in (*found.gone, *(one.path for one in seen.skipped)):
            if self._known.pop(path, None) is not None:
                self._unsaved[path] = False
        before = self.snapshot
        self.snapshot = make_next_snapshot(before, found)
        milliseconds = (time.perf_counter() - started) * 1e3
        return Update(before, self.snapshot, found.encoded, milliseconds)

    def _find_changed(self, seen: Scan, found: ScanResult) -> dict[str, FileStat]:
        """Return the files to read; files that their stat proves unchanged are found without."""
        to_read, to_recall = {}, {}
        files = self.snapshot.files
        for path, stat in seen.files.items():
            known = self._known.get(path)
            if known is None or not known.settled or known.record.stat != stat:
                to_read[path] = stat
            elif known.record.reason:
                found.skipped[path] = known.record.reason
            elif path not in files or files[path].content_hash != known.record.content_hash:
                to_recall[path] = known.record.content_hash
        found.tokens.update(self._contents.recall(to_recall))
        to_read.update({path: seen.files[path] for path in to_recall if path not in found.tokens})
        return to_read

    def _read(
        self, files: Mapping[str, FileStat], found: ScanResult, progress: Callable[[IndexProgress], None] | None
    ) -> None:
        of_bytes = sum(stat.size for stat in files.values())
        if len(files) <= FEW_FILES and of_bytes <= FEW_BYTES:
            self._apply_outcomes(self._read_chunk(list(files), in_bulk=False), found, in_bulk=False)
            return
        done_files = done_bytes = 0
        pool = ThreadPoolExecutor(_count_threads(), "hunk-index")
        try:
            for outcomes in pool.map(lambda chunk: self._read_chunk(chunk, in_bulk=True), _split_into_chunks(files)):
                self._apply_outcomes(outcomes, found, in_bulk=True)
                done_files += len(outcomes)
                done_bytes += sum(files[outcome.path].size for outcome in outcomes)
                if progress is not None:
                    progress(IndexProgress(done_files, len(files), done_bytes, of_bytes))
        finally:
            pool.shutdown(cancel_futures=True)  # Ctrl-C does not wait for the rest

    def _read_chunk(self, paths: list[str], *, in_bulk: bool) -> list[_ReadOutcome]:
        """Read these files and make their tokens. Several threads call this at once; it changes no state."""
        outcomes, contents, reads = [], [], []
        for path in paths:
            looked_at_ns = time.time_ns()
            read = read_file(self._root, path, max_file_bytes=self._max_file_bytes)
            if isinstance(read, FileContent):
                content = FileVersion(path, read.data, sha256(read.data).hexdigest(), self.snapshot.files.get(path))
                contents.append(content)
                reads.append(read)
            else:
                known = None
                if read.stat is not None and read.reason in _OF_CONTENT:
                    known = _Known(FileRecord(read.stat, "", str(read.reason)), is_settled(read.stat, looked_at_ns))
                outcomes.append(
                    _ReadOutcome(path, None, "" if read.reason == SkipReason.GONE else str(read.reason), known)
                )
        for content, read, made in zip(contents, reads, self._contents.encode(contents, in_bulk=in_bulk), strict=True):
            known = _Known(FileRecord(read.stat, content.content_hash, made.reason), read.settled)
            changed = made.tokens is not None and made.tokens is not content.before
            outcomes.append(_ReadOutcome(content.path, made.tokens, made.reason, known, made.num_encoded, changed))
        return outcomes

    def _apply_outcomes(self, outcomes: Iterable[_ReadOutcome], found: ScanResult, *, in_bulk: bool) -> None:
        for outcome in outcomes:
            self._unsaved[outcome.path] = not in_bulk
            if outcome.known is not None:
                self._known[outcome.path] = outcome.known
            else:
                self._known.pop(outcome.path, None)
            if outcome.tokens is not None:
                found.tokens[outcome.path] = outcome.tokens
                if outcome.changed:
                    found.encoded[outcome.path] = outcome.num_encoded
            elif outcome.reason:
                found.skipped[outcome.path] = outcome.reason
            else:
                found.gone.add(outcome.path)
                self._links.pop(outcome.path, None)


@dataclass(frozen=True, slots=True)
class _ReadOutcome:
    """The result of reading one file: its tokens, or the reason why it is skipped, or neither if it is gone."""

    path: str
    tokens: FileTokens | None
    reason: str
    known: _Known | None
    num_encoded: int = 0
    changed: bool = False


_OF_CONTENT = {SkipReason.BINARY, SkipReason.NOT_UTF8}
"""Reasons that depend on the bytes, so that an unchanged stat proves them."""


def _is_below(path: str, folders: set[str]) -> bool:
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        if path in folders:
            return True
    return False


def _split_into_chunks(files: Mapping[str, FileStat]) -> Iterator[list[str]]:
    """Yield paths, in order, in lists of about `CHUNK_BYTES`."""
    chunk: list[str] = []
    size = 0
    for path, stat in files.items():
        chunk.append(path)
        size += stat.size
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _count_threads() -> int:
    """Return one more than the number of cores: while some threads encode, another one reads."""
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) + 1
