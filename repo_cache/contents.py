"""Encodes contents of files, with a cache of the texts that changed last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from repo_cache.chunks import cut, recut
from repo_cache.errors import TokenizerError
from repo_cache.incremental import EncodedText, reencoded, restored
from repo_cache.spans import CutText, FileSpans
from repo_cache.store import TokenStore
from repo_cache.syntax import language_of
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens, SpanCutter

DEFAULT_HOT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HotText:
    """One content of a file, with everything that makes its next version cheap."""

    text: EncodedText
    cut: CutText

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        text = self.text
        own = len(text.data) + text.token_ids.nbytes + text.token_ends.nbytes
        return own + self.cut.num_bytes


Key = tuple[str, str | None]
"""Content hash, and the language that the path stands for."""


class HotTexts:
    """At most `max_bytes` of them; not thread-safe."""

    def __init__(self, max_bytes: int = DEFAULT_HOT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._texts: OrderedDict[Key, HotText] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_bytes(self) -> int:
        """Of all."""
        return self._num_bytes

    def get(self, key: Key) -> HotText | None:
        """The text of this content, which then counts as used now."""
        found = self._texts.get(key)
        if found is not None:
            self._texts.move_to_end(key)
        return found

    def put(self, key: Key, text: HotText) -> None:
        """Keep it, and let those go that were not used for longest."""
        self.drop(key)
        if text.num_bytes > self._max_bytes:
            return
        self._texts[key] = text
        self._num_bytes += text.num_bytes
        while self._num_bytes > self._max_bytes:
            self.drop(next(iter(self._texts)))

    def drop(self, key: Key) -> None:
        """Let it go, where it is there."""
        found = self._texts.pop(key, None)
        if found is not None:
            self._num_bytes -= found.num_bytes

    def check_integrity(self) -> None:
        """The sizes add up, and to no more than the limit."""
        assert self._num_bytes == sum(text.num_bytes for text in self._texts.values())
        assert self._num_bytes <= self._max_bytes


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes (strict UTF-8) that were read from a path, their SHA-256 in hex, and what was known at the path."""

    path: str
    data: bytes
    content_hash: str
    before: FileTokens | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of a content: its tokens, or why it has none; and how many of them were encoded for it."""

    tokens: FileTokens | None
    num_encoded: int = 0
    reason: str = ""


class Contents:
    """Makes `FileTokens`; thread-safe.

    Files of one content whose paths stand for one language share one `FileTokens`, for as long as any snapshot holds
    it.
    """

    def __init__(self, tokenizer: BPETokenizer, store: TokenStore | None, hot_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._store = store
        self._lock = threading.Lock()
        self._hot = HotTexts(hot_bytes)
        self._shared: WeakValueDictionary[tuple[str, str | None], FileTokens] = WeakValueDictionary()
        self._cutter = cache(partial(_cutter, tokenizer))
        """One a language."""

    def recall(self, hashes: Mapping[str, str]) -> dict[str, FileTokens]:
        """Tokens of those contents, path -> hash, that are in memory or in the store, by path."""
        found = {path: tokens for path, key in hashes.items() if (tokens := self.known(path, key)) is not None}
        if self._store is not None and len(found) < len(hashes):
            ids = self._store.read({key for path, key in hashes.items() if path not in found})
            for path, key in hashes.items():
                if path not in found and key in ids:
                    found[path] = self._made(path, key, ids[key])
        return found

    def known(self, path: str, content_hash: str) -> FileTokens | None:
        """The tokens of a content that some snapshot holds, for a file at this path."""
        with self._lock:
            return self._shared.get((content_hash, language_of(path)))

    def encode(self, contents: Sequence[Content], *, in_bulk: bool) -> list[Encoded]:
        """The tokens of each content.

        Where there are few, their texts and trees are kept for the next change; in bulk they are looked up in the
        store and put there.
        """
        answers: dict[int, Encoded] = {}
        new: dict[str, list[int]] = {}
        for number, content in enumerate(contents):
            known = self.known(content.path, content.content_hash)
            if known is not None:
                answers[number] = Encoded(known)
            elif content.before is not None:
                answers[number] = self._next(content, content.before, keep=not in_bulk)
            else:
                new.setdefault(content.content_hash, []).append(number)
        first = {key: contents[numbers[0]] for key, numbers in new.items()}
        for content_hash, (ids, num_encoded) in self._ids(first, in_bulk).items():
            for place, number in enumerate(new[content_hash]):
                answers[number] = self._answer(contents[number], ids, 0 if place else num_encoded)
        if in_bulk and self._store is not None:
            self.save(answer.tokens for answer in answers.values() if answer.num_encoded and answer.tokens is not None)
        return [answers[number] for number in range(len(contents))]

    def save(self, tokens: Iterable[FileTokens]) -> None:
        """Put them into the store, where there is one."""
        if self._store is not None:
            self._store.write({one.content_hash: one.token_ids for one in tokens})

    def _ids(self, contents: Mapping[str, Content], in_bulk: bool) -> dict[str, tuple[NDArray[np.uint32] | str, int]]:
        """By hash: the ids, or why there are none, and how many were encoded."""
        stored = self._store.read(contents) if in_bulk and self._store is not None else {}
        found: dict[str, tuple[NDArray[np.uint32] | str, int]] = {key: (ids, 0) for key, ids in stored.items()}
        unknown = [key for key in contents if key not in found]
        texts = [contents[key].data for key in unknown]
        found.update(zip(unknown, self._encoded(texts), strict=True))
        return found

    def _encoded(self, texts: Sequence[bytes]) -> list[tuple[NDArray[np.uint32] | str, int]]:
        try:
            return [(ids, len(ids)) for ids in self._tokenizer.encode_batch([text.decode() for text in texts])]
        except TokenizerError as error:  # of one of them
            if len(texts) == 1:
                return [(str(error), 0)]
            return [self._encoded([text])[0] for text in texts]

    def _answer(self, content: Content, ids: NDArray[np.uint32] | str, num_encoded: int) -> Encoded:
        if isinstance(ids, str):
            return Encoded(None, 0, ids)
        return Encoded(self._made(content.path, content.content_hash, ids), num_encoded)

    def _next(self, content: Content, before: FileTokens, *, keep: bool) -> Encoded:
        """The next version of a file, for the price of the change."""
        language = language_of(content.path)
        with self._lock:
            hot = self._hot.get((before.content_hash, language))
        old = hot.text if hot is not None else restored(self._tokenizer, before.token_ids)
        try:
            new = reencoded(self._tokenizer, old, content.data)
        except TokenizerError as error:
            return Encoded(None, 0, str(error))
        if not keep:
            return Encoded(self._made(content.path, content.content_hash, new.text.token_ids), new.num_encoded)
        fingerprint = self._tokenizer.fingerprint
        old_cut = hot.cut if hot is not None else cut(old, language, fingerprint)
        new_cut = recut(old_cut, old, new, language, fingerprint)
        before.remember(old_cut.spans)
        with self._lock:
            self._hot.drop((before.content_hash, language))
            self._hot.put((content.content_hash, language), HotText(new.text, new_cut))
        return Encoded(
            self._made(content.path, content.content_hash, new.text.token_ids, new_cut.spans), new.num_encoded
        )

    def _made(
        self, path: str, content_hash: str, ids: NDArray[np.uint32], spans: FileSpans | None = None
    ) -> FileTokens:
        """The one `FileTokens` of this content and language."""
        language = language_of(path)
        tokens = FileTokens(content_hash, ids, self._cutter(language), spans)
        with self._lock:
            return self._shared.setdefault((content_hash, language), tokens)


def _cutter(tokenizer: BPETokenizer, language: str | None) -> SpanCutter:
    def spans(token_ids: NDArray[np.uint32]) -> FileSpans:
        return cut(restored(tokenizer, token_ids), language, tokenizer.fingerprint).spans

    return spans
