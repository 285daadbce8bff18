"""Encodes the contents of files, and caches the texts that changed most recently."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from operator import attrgetter
from weakref import WeakValueDictionary

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from repo_cache.chunks import cut_spans, recut_spans
from repo_cache.errors import TokenizerError
from repo_cache.incremental import EncodedText, reencode, restore_text
from repo_cache.spans import CutText, FileSpans
from repo_cache.store import TokenStore
from repo_cache.syntax import find_language
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens, SpanCutter

DEFAULT_HOT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RecentText:
    """A file's content with everything that makes encoding its next version cheap."""

    text: EncodedText
    cut: CutText

    @property
    def num_bytes(self) -> int:
        """The approximate memory that it takes."""
        text = self.text
        own = len(text.data) + text.token_ids.nbytes + text.token_ends.nbytes
        return own + self.cut.num_bytes


Key = tuple[str, str | None]
"""Content hash and language of the path."""


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The bytes of a file (strict UTF-8), their SHA-256 in hex, and the tokens of its previous version."""

    path: str
    data: bytes
    content_hash: str
    before: FileTokens | None = None


@dataclass(frozen=True, slots=True)
class EncodeResult:
    """The tokens of a content, or the reason why it has none, and how many of them were encoded."""

    tokens: FileTokens | None
    num_encoded: int = 0
    reason: str = ""


class TokenEncoder:
    """Makes `FileTokens`. Thread-safe.

    Files with equal content and language share one `FileTokens` as long as any snapshot holds it.
    """

    def __init__(self, tokenizer: BPETokenizer, store: TokenStore | None, hot_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._store = store
        self._lock = threading.Lock()
        self._recent: LRUCache[Key, RecentText] = LRUCache(hot_bytes, getsizeof=attrgetter("num_bytes"))
        self._shared: WeakValueDictionary[tuple[str, str | None], FileTokens] = WeakValueDictionary()
        self._cutter = cache(partial(_make_cutter, tokenizer))
        """One a language."""

    def recall(self, hashes: Mapping[str, str]) -> dict[str, FileTokens]:
        """Return the tokens of those contents (path -> hash) that are in memory or in the store, by path."""
        found = {path: tokens for path, key in hashes.items() if (tokens := self.find_shared(path, key)) is not None}
        if self._store is not None and len(found) < len(hashes):
            ids = self._store.read({key for path, key in hashes.items() if path not in found})
            for path, key in hashes.items():
                if path not in found and key in ids:
                    found[path] = self._share(path, key, ids[key])
        return found

    def find_shared(self, path: str, content_hash: str) -> FileTokens | None:
        """Return the tokens of a content that some snapshot holds, for a file at this path."""
        with self._lock:
            return self._shared.get((content_hash, find_language(path)))

    def encode(self, contents: Sequence[FileVersion], *, in_bulk: bool) -> list[EncodeResult]:
        """Return the tokens of each content.

        For few files, texts and trees are kept for the next change; in bulk, tokens are read from and written to the
        store.
        """
        answers: dict[int, EncodeResult] = {}
        new: dict[str, list[int]] = {}
        for number, content in enumerate(contents):
            known = self.find_shared(content.path, content.content_hash)
            if known is not None:
                answers[number] = EncodeResult(known)
            elif content.before is not None:
                answers[number] = self._encode_change(content, content.before, keep=not in_bulk)
            else:
                new.setdefault(content.content_hash, []).append(number)
        first = {key: contents[numbers[0]] for key, numbers in new.items()}
        for content_hash, (ids, num_encoded) in self._load_or_encode(first, in_bulk).items():
            for place, number in enumerate(new[content_hash]):
                answers[number] = self._make_result(contents[number], ids, 0 if place else num_encoded)
        if in_bulk and self._store is not None:
            self.save(answer.tokens for answer in answers.values() if answer.num_encoded and answer.tokens is not None)
        return [answers[number] for number in range(len(contents))]

    def save(self, tokens: Iterable[FileTokens]) -> None:
        """Write tokens to the store, if there is one."""
        if self._store is not None:
            self._store.write({one.content_hash: one.token_ids for one in tokens})

    def _load_or_encode(
        self, contents: Mapping[str, FileVersion], in_bulk: bool
    ) -> dict[str, tuple[NDArray[np.uint32] | str, int]]:
        """Return by hash the ids, or the reason why there are none, and how many were encoded."""
        stored = self._store.read(contents) if in_bulk and self._store is not None else {}
        found: dict[str, tuple[NDArray[np.uint32] | str, int]] = {key: (ids, 0) for key, ids in stored.items()}
        unknown = [key for key in contents if key not in found]
        texts = [contents[key].data for key in unknown]
        found.update(zip(unknown, self._encode_texts(texts), strict=True))
        return found

    def _encode_texts(self, texts: Sequence[bytes]) -> list[tuple[NDArray[np.uint32] | str, int]]:
        try:
            return [(ids, len(ids)) for ids in self._tokenizer.encode_batch([text.decode() for text in texts])]
        except TokenizerError as error:  # caused by one of them
            if len(texts) == 1:
                return [(str(error), 0)]
            return [self._encode_texts([text])[0] for text in texts]

    def _make_result(self, content: FileVersion, ids: NDArray[np.uint32] | str, num_encoded: int) -> EncodeResult:
        if isinstance(ids, str):
            return EncodeResult(None, 0, ids)
        return EncodeResult(self._share(content.path, content.content_hash, ids), num_encoded)

    def _encode_change(self, content: FileVersion, before: FileTokens, *, keep: bool) -> EncodeResult:
        """Encode the next version of a file at the cost of the change."""
        language = find_language(content.path)
        with self._lock:
            recent = self._recent.get((before.content_hash, language))
        old = recent.text if recent is not None else restore_text(self._tokenizer, before.token_ids)
        try:
            new = reencode(self._tokenizer, old, content.data)
        except TokenizerError as error:
            return EncodeResult(None, 0, str(error))
        if not keep:
            return EncodeResult(self._share(content.path, content.content_hash, new.text.token_ids), new.num_encoded)
        fingerprint = self._tokenizer.fingerprint
        old_cut = recent.cut if recent is not None else cut_spans(old, language, fingerprint)
        new_cut = recut_spans(old_cut, old, new, language, fingerprint)
        before.set_spans(old_cut.spans)
        with self._lock, suppress(ValueError):  # larger than the cache
            self._recent.pop((before.content_hash, language), None)
            self._recent[content.content_hash, language] = RecentText(new.text, new_cut)
        return EncodeResult(
            self._share(content.path, content.content_hash, new.text.token_ids, new_cut.spans), new.num_encoded
        )

    def _share(
        self, path: str, content_hash: str, ids: NDArray[np.uint32], spans: FileSpans | None = None
    ) -> FileTokens:
        """Return the one `FileTokens` of this content and language."""
        language = find_language(path)
        tokens = FileTokens(content_hash, ids, self._cutter(language), spans)
        with self._lock:
            return self._shared.setdefault((content_hash, language), tokens)


def _make_cutter(tokenizer: BPETokenizer, language: str | None) -> SpanCutter:
    def spans(token_ids: NDArray[np.uint32]) -> FileSpans:
        return cut_spans(restore_text(tokenizer, token_ids), language, tokenizer.fingerprint).spans

    return spans
