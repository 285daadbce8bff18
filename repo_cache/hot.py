"""Texts that were changed lately, kept decoded and parsed, for their next change; the oldest go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from repo_cache.incremental import EncodedText
from repo_cache.spans import CutText

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
