"""Token ids of a changed text for the price of the change: exactly those that encoding all of it gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repo_cache.text_change import TextChange, text_change
from repo_cache.tokenizer import BPETokenizer


@dataclass(frozen=True)
class EncodedText:
    """A text, its tokens, and where each of them ends. The arrays are read-only."""

    data: bytes
    token_ids: NDArray[np.uint32]
    token_ends: NDArray[np.uint32]
    """The byte offset behind each token, [num_tokens]; a token may end inside a UTF-8 character."""


@dataclass(frozen=True, slots=True)
class TokenChange:
    """Tokens `[start, old_end)` became `[start, new_end)`; they hold every byte of the text's change."""

    start: int
    old_end: int
    new_end: int


@dataclass(frozen=True, slots=True)
class Reencoded:
    """A text's next version."""

    text: EncodedText
    change: TextChange | None
    """The bytes that were replaced; None where the new text is the old one."""
    tokens: TokenChange
    """Empty, (0, 0, 0), where the new text is the old one."""
    num_encoded: int
    """Tokens that were encoded anew; at least those that changed."""


def encoded(tokenizer: BPETokenizer, data: bytes) -> EncodedText:
    """Encode all of a text; raises UnicodeDecodeError, and TokenizerError for a byte that the vocabulary lacks."""
    return restored(tokenizer, tokenizer.encode_batch([data.decode()])[0], data)


def restored(tokenizer: BPETokenizer, token_ids: NDArray[np.uint32], data: bytes | None = None) -> EncodedText:
    """The encoded text of which only the ids were kept. `data`, where it is at hand, is their text."""
    if data is None:
        table = tokenizer.token_bytes()
        data = b"".join([table[token_id] for token_id in token_ids.tolist()])
    return EncodedText(data, token_ids, tokenizer.token_ends(token_ids))


def reencoded(tokenizer: BPETokenizer, old: EncodedText, data: bytes) -> Reencoded:
    """The next version of `old`; raises as `encoded` does."""
    change = text_change(old.data, data)
    if change is None:
        return Reencoded(old, None, TokenChange(0, 0, 0), 0)
    new = encoded(tokenizer, data)
    return Reencoded(new, change, TokenChange(0, len(old.token_ids), len(new.token_ids)), len(new.token_ids))
