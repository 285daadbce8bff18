"""Files of a session that come as text: their tokens and spans, as the repository cache makes them."""

from __future__ import annotations

from hashlib import sha256

from agent_runtime.errors import BadFile
from repo_cache.contents import Content, Contents
from repo_cache.tokenizer import BPETokenizer
from repo_cache.types import FileTokens

HOT_BYTES = 16 << 20
"""Of texts and trees kept for the next version of a file."""


class TextFiles:
    """Makes `FileTokens` of texts, the next version of a file for the price of the change."""

    def __init__(self, tokenizer: BPETokenizer) -> None:
        self._contents = Contents(tokenizer, None, HOT_BYTES)

    def tokens(self, path: str, text: str, before: FileTokens | None) -> FileTokens:
        """The tokens of a text; `before` are those of the file's last version. Raises BadFile where it has none."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise BadFile(f"{path} holds a lone surrogate at character {error.start}, which is not text") from None
        (made,) = self._contents.encode([Content(path, data, sha256(data).hexdigest(), before)], in_bulk=False)
        if made.tokens is None:
            raise BadFile(f"{path} cannot be encoded: {made.reason}")
        return made.tokens
