"""Token ids of many texts, word by word: a word that comes again, as most of a program's do, is encoded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from repo_cache.safe_cuts import SafeCuts

_GROUP_CHARS = 1 << 20
"""Encoded together: many enough to give the library's threads work, few enough that nobody waits long."""
_PIECE_CHARS = 1 << 16
"""Cut into words at once, in which time no other thread runs Python: about 3 ms."""

_MAX_WORDS = 1 << 17
_MAX_WORD_CHARS = 1 << 21
"""What is kept from group to group, about 30 MB."""


class WordCache:
    """Encodes as `encode` does, by what it gave for the same words before. Thread-safe.

    A word is the text between two safe cuts, so the ids of a text are those of its words, one behind the other.
    `encode` takes texts and gives the ids of each.
    """

    def __init__(self, cuts: SafeCuts, encode: Callable[[list[str]], list[list[int]]]) -> None:
        self._cuts = cuts
        self._encode = encode
        self._ids: dict[str, bytes] = {}  # native uint32, so that joining them joins the ids
        self._num_chars = 0
        self._lock = Lock()

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """The ids of each text, [num_tokens], read-only."""
        parts: list[list[bytes]] = [[] for _ in texts]
        for group in self._groups(texts):
            with self._lock:
                self._learn(group)
                for number, words in group:
                    parts[number].append(b"".join(map(self._ids.__getitem__, words)))
                self._forget()
        return [np.frombuffer(part[0] if len(part) == 1 else b"".join(part), np.uint32) for part in parts]

    def _groups(self, texts: Sequence[str]) -> Iterator[list[tuple[int, list[str]]]]:
        """Words of parts of the texts, each with its text's number."""
        group: list[tuple[int, list[str]]] = []
        num_chars = 0
        for number, text in enumerate(texts):
            for piece in self._cuts.pieces(text, _PIECE_CHARS):
                group.append((number, self._cuts.words(piece)))
                num_chars += len(piece)
                if num_chars >= _GROUP_CHARS:
                    yield group
                    group, num_chars = [], 0
        yield group

    def _learn(self, group: list[tuple[int, list[str]]]) -> None:
        new: set[str] = set()
        for _, words in group:
            new.update(words)
        unknown = list(new.difference(self._ids))
        for word, ids in zip(unknown, self._encode(unknown), strict=True):
            self._ids[word] = np.array(ids, np.uint32).tobytes()
            self._num_chars += len(word)

    def _forget(self) -> None:
        if len(self._ids) > _MAX_WORDS or self._num_chars > _MAX_WORD_CHARS:
            self._ids = {}
            self._num_chars = 0
